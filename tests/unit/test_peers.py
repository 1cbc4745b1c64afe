"""The comparison with other runtimes: what events say of a recovery, which cells there are, and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import environments
from benchmarks.peers.cells import METRICS, Cell, lost_text, name_of, phase_text, plan, shown, time_text
from benchmarks.peers.contenders import Contender, free_ports
from benchmarks.peers.drive import RANKS, orders
from benchmarks.peers.entries import CONTENDERS, KINDS
from benchmarks.peers.environments import Environment
from benchmarks.peers.measure import worst_twin
from benchmarks.peers.observed import Sample, holders, lost_steps, sample, twin_verdict
from benchmarks.peers.page import NOTHING, page, plot, readme
from benchmarks.report import RESULTS, circumstances, fill
from chaos.record import PartDirectory
from chaos.runtimes import Job
from chaos.scenario import Cluster
from phoenix_core.events import Event

SECOND = 1_000_000_000
BY_KEY = {contender.key: contender for contender in CONTENDERS}


def step(at: float, rank: int, number: int, *, took: float = 0.2, worker: str = "", loss: float = 1.0) -> list[Event]:
    """The two events of a step that was committed at `at` seconds."""
    who = worker or f"w{rank}"
    end, began = round(at * SECOND), round((at - took) * SECOND)
    data = {"duration_ns": end - began, "loss": loss}
    return [
        Event(kind="phase_entered", at=began, worker=who, rank=rank, step=number, data={"phase": "forward"}),
        Event(kind="step_committed", at=end, worker=who, rank=rank, step=number, data=data),
    ]


def told(kind: str, at: float, worker: str = "w0") -> Event:
    return Event(kind=kind, at=round(at * SECOND), worker=worker)


def fault_at(at: float, rank: int = 1) -> Event:
    data = {"kind": "process_kill", "fault": "f"}
    return Event(kind="fault_injected", at=round(at * SECOND), worker=f"w{rank}", rank=rank, data=data)


def ordered(*groups: list[Event]) -> list[Event]:
    return sorted((event for group in groups for event in group), key=lambda event: event.at)


def a_restart() -> list[Event]:
    """Two ranks commit steps 0-2 and begin 3; rank 1 dies at 4 s; both come back and go on from step 2."""
    before = [step(rank / 100 + number + 1, rank, number) for number in range(3) for rank in range(2)]
    broken = [step(99.0, rank, 3, took=95.1)[:1] for rank in range(2)]
    again = [step(7.0 + number, rank, number, worker=f"n{rank}") for number in (2, 3, 4) for rank in range(2)]
    signs = [told("worker_exited", 4.5), told("model_built", 6.0, "n0"), told("state_restored", 6.5, "n1")]
    return ordered(*before, *broken, *again, [fault_at(4.0)], signs)


def test_recovery_ends_with_the_first_new_step_of_everybody() -> None:
    events = a_restart()
    found = sample(events, fault_at(4.0), kind="kill", size=2)
    # Step 2 was committed before the fault: 3 is the first new one, committed by both at 10 s.
    assert found.recovery_s == pytest.approx(6.0)
    assert found.goes_on_s == pytest.approx(6.0)
    assert found.lost_steps == 2  # 2, and 3 which was interrupted
    assert found.why == ""


def test_phases_tile_the_recovery_and_what_nobody_tells_of_belongs_to_the_next() -> None:
    found = sample(a_restart(), fault_at(4.0), kind="kill", size=2)
    assert found.phases["detect"] == pytest.approx(0.5)
    assert found.phases["quiesce"] == pytest.approx(0.0)  # the last old worker left when the first did
    assert found.phases["replace"] == pytest.approx(1.5)
    assert found.phases["reconstruct"] is None
    assert found.phases["restore"] == pytest.approx(0.5)
    assert found.recovery_s is not None
    assert sum(value or 0.0 for value in found.phases.values()) == pytest.approx(found.recovery_s)


def test_a_step_that_was_in_flight_when_the_fault_came_is_no_recovery() -> None:
    """A survivor may still commit it: it had everybody's gradients."""
    late = [step(4.1, rank, 3, took=0.3) for rank in range(2)]
    events = ordered(*[step(3.0, rank, 2) for rank in range(2)], *late, [fault_at(4.0)])
    assert sample(events, fault_at(4.0), kind="kill", size=2, why="not yet").recovery_s is None


def test_a_step_that_passed_while_a_network_was_being_cut_is_no_recovery() -> None:
    cut = replace(fault_at(4.0), data={"proof": {"took_s": 0.5}})
    events = ordered(*[step(4.3, rank, 3) for rank in range(2)], *[step(9.0, rank, 4) for rank in range(2)], [cut])
    assert sample(events, fault_at(4.0), kind="partition", size=2).recovery_s == pytest.approx(0.3)
    assert sample(events, cut, kind="partition", size=2).recovery_s == pytest.approx(5.0)


def test_survivors_that_go_on_alone_are_told_from_a_whole_world() -> None:
    alone = ordered(*[step(3.0, rank, 0) for rank in range(3)], *[step(5.0, rank, 1) for rank in (0, 2)])
    found = sample(alone, fault_at(4.0), kind="hang", size=3, why="nobody ends it")
    assert found.goes_on_s == pytest.approx(1.0)
    assert (found.recovery_s, found.why) == (None, "nobody ends it")
    assert found.lost_steps == 0


def test_lost_steps_are_those_begun_twice_and_not_those_in_flight() -> None:
    events = ordered(step(1.0, 0, 0), step(2.0, 0, 1), step(3.0, 1, 1))
    assert lost_steps(events, SECOND) == 0
    assert lost_steps(ordered(events, step(5.0, 0, 0)), 4 * SECOND) == 2


def test_the_holder_of_a_rank_is_who_last_began_a_step_as_it() -> None:
    assert holders(ordered(step(1.0, 0, 0), step(2.0, 0, 1, worker="other"))) == {0: "other"}


@pytest.mark.parametrize(
    ("loss", "after", "verdict"), [(1.0, 0, "PASS"), (1.0000001, 0, "FAIL"), (1.0, 10 * SECOND, "UNKNOWN")]
)
def test_a_twin_is_equal_in_every_bit_after_the_fault(loss: float, after: int, verdict: str) -> None:
    undisturbed = ordered(step(1.0, 0, 0), step(2.0, 0, 1))
    found = twin_verdict(ordered(step(1.0, 0, 0), step(3.0, 0, 1, loss=loss)), undisturbed, after)
    assert found[0] == verdict
    assert verdict != "FAIL" or "by 1e-07 at most" in found[1]


def test_the_worst_twin_counts() -> None:
    assert worst_twin([("PASS", "a"), ("UNKNOWN", "b")]) == ("UNKNOWN", "b")
    assert worst_twin([("FAIL", "c"), ("UNKNOWN", "b")]) == ("FAIL", "c")
    assert worst_twin([]) is None


# --- cells ------------------------------------------------------------------------------------------------------------


def one(recovery_s: float | None, *, goes_on_s: float | None = None, lost: int | None = 1, why: str = "") -> Sample:
    phases = {"detect": 0.1, "quiesce": None}
    return Sample(
        kind="kill", rank=1, goes_on_s=goes_on_s, recovery_s=recovery_s, phases=phases, lost_steps=lost, why=why
    )


def test_a_cell_says_how_many_recovered_and_why_the_others_did_not() -> None:
    assert time_text(Cell(samples=(one(1.0), one(3.0), one(2.0)))) == "2.00 s (1.00-3.00) n=3"
    assert time_text(Cell(samples=(one(1.0), one(None, why="it hung")))) == "1.00 s in 1 of 2; else: it hung"
    assert time_text(Cell(samples=(one(None, why="it hung"),))) == "never: it hung"
    assert time_text(Cell(samples=(one(None, goes_on_s=2.0),)), goes_on=True) == "2.00 s n=1"
    assert time_text(Cell(reason="it has no spare")) == "it has no spare"
    assert time_text(Cell()) == "not measured yet"


def test_lost_steps_and_phases_of_a_cell() -> None:
    cell = Cell(samples=(one(1.0, lost=0), one(2.0, lost=7)))
    assert (lost_text(cell), lost_text(Cell())) == ("0-7", "-")
    assert (phase_text(cell, "detect"), phase_text(cell, "quiesce")) == ("0.10", "-")


def test_what_was_measured_by_the_same_code_and_versions_is_kept() -> None:
    contender = BY_KEY["phoenix/default"]
    wanted = dict.fromkeys(METRICS, 2)
    stamps = {contender.key: {"code": "a"}}
    kill = Cell(samples=(one(1.0), one(2.0)), stamp={"code": "a"}, wanted=2)

    def left(cell: Cell) -> list[str]:
        return [metric for _, metric in plan([contender], {name_of(contender, "kill"): cell}, stamps, wanted)]

    assert set(METRICS) - set(left(kill)) == {"kill"}
    assert "kill" in left(replace(kill, stamp={"code": "b"}))
    assert "kill" in left(replace(kill, wanted=1))
    assert "kill" in left(replace(kill, samples=(), reason="its environment could not be made"))


def test_what_would_say_nothing_is_not_measured_and_has_a_reason() -> None:
    for contender in CONTENDERS:
        planned = {metric for _, metric in plan([contender], {}, {contender.key: {}}, dict.fromkeys(METRICS, 1))}
        assert planned == set(METRICS) - set(contender.cannot)
        assert all(shown(contender, metric, {}).reason for metric in METRICS)


def test_a_cell_survives_its_file() -> None:
    cell = Cell(samples=(one(1.0),), twin=("PASS", "all"), value={"a": 1}, stamp={"code": "a"}, wanted=3)
    assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


@pytest.mark.parametrize("text", ["", "{}", '{"cells": {"a": {"samples": 3}}}', "[1]"])
def test_a_file_that_is_none_of_ours_counts_as_nothing_measured(tmp_path: Path, text: str) -> None:
    (tmp_path / "peers.json").write_text(text)
    assert command.kept(tmp_path / "peers.json") == {}


# --- the page ---------------------------------------------------------------------------------------------------------


def some_cells() -> dict[str, Cell]:
    ratio = {"value": 1.01, "low": 0.99, "high": 1.03, "pairs": 8}
    cells = {}
    for contender in CONTENDERS:
        cells[name_of(contender, "kill")] = Cell(samples=(one(0.5), one(8.0)), twin=("PASS", "all"))
        cells[name_of(contender, "overhead")] = Cell(value={"ratio": ratio, "hidden": 0.1})
        plain = {"processes": 5, "memory_bytes": 2**30}
        cells[name_of(contender, "cost")] = Cell(
            value={"processes": 9, "memory_bytes": 2**31, "plain": plain, "spares": 1}
        )
    return cells


@pytest.mark.parametrize("cells", [{}, some_cells()])
def test_no_cell_of_the_page_is_blank(cells: dict[str, Cell]) -> None:
    text = page(CONTENDERS, cells, circumstances(), "make bench-peers")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    # PHOENIX is not compared with itself; what no timeout plays a part in is measured in one setting.
    twice = sum("overhead" in contender.cannot for contender in CONTENDERS)
    assert len(rows) == 5 * (len(CONTENDERS) + 1) - 1 - twice
    for row in rows:
        assert all(field.strip() for field in row.strip("|").split("|")), row


def test_the_page_shows_what_was_measured() -> None:
    text = page(CONTENDERS, some_cells(), circumstances(), "make bench-peers")
    assert "4.25 s (0.50-8.00) n=2" in text
    assert "1.010 (0.990-1.030) | 1.111" in text
    assert "+4 | +1.00 GiB" in text


def test_how_many_times_as_long_as_phoenix() -> None:
    ours, theirs = BY_KEY["phoenix/default"], BY_KEY["torchft/tuned"]
    cells = {
        name_of(ours, "kill"): Cell(samples=tuple(one(0.5) for _ in range(5))),
        name_of(theirs, "kill"): Cell(samples=tuple(one(2.0) for _ in range(5))),
        name_of(ours, "hang"): Cell(samples=(one(1.0, goes_on_s=1.0),)),
        name_of(theirs, "hang"): Cell(samples=(one(None, goes_on_s=3.0),)),
        name_of(ours, "node"): Cell(samples=(one(1.0, goes_on_s=1.0),)),
        name_of(theirs, "node"): Cell(samples=(one(None, why="it hung"),)),
    }
    text = page([ours, theirs], cells, circumstances(), "make bench-peers")
    assert (
        f"| {theirs.title} | {theirs.setting} | 4.0 (4.0-4.0) | 3.0 to go on | for ever | no value (see above) |"
        in text
    )


def test_a_world_that_is_never_whole_says_why_and_when_the_others_go_on() -> None:
    contender = BY_KEY["torchft/tuned"]
    cells = {name_of(contender, "hang"): Cell(samples=(one(None, goes_on_s=1.5, why="x"),))}
    text = page([contender], cells, circumstances(), "make bench-peers")
    assert f"never whole ({contender.alone['hang']}); goes on 1.50 s" in text


def test_the_readme_shows_what_is_published_and_nothing_else(tmp_path: Path) -> None:
    shows = command.README.read_text().partition("<!-- peers -->\n")[2].partition("<!-- /peers -->")[0]
    assert shows == readme(CONTENDERS, command.kept(RESULTS / "peers.json")), "python -m benchmarks.peers --pages"
    copy = tmp_path / "README.md"
    copy.write_text("before\n<!-- peers -->\nold\n<!-- /peers -->\nafter\n")
    command.tell_readme(some_cells(), RESULTS, copy)
    before, table, after = copy.read_text().partition(readme(CONTENDERS, some_cells()))
    assert (before, after) == ("before\n<!-- peers -->\n", "<!-- /peers -->\nafter\n")
    assert "| PHOENIX, 1 spare | default | 4.25 s (0.50-8.00) n=2 | not measured yet | 1.010 (0.990-1.030) |" in table
    command.tell_readme({}, tmp_path, copy)  # results elsewhere are nobody's
    assert NOTHING not in copy.read_text()
    copy.write_text("nothing")
    with pytest.raises(ValueError, match="has no place for peers"):
        fill(copy, "peers", "")


def test_pages_are_written_anew_with_the_circumstances_of_the_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--pages", "--out", str(tmp_path)]) == 2
    assert "peers.json cannot be used" in capsys.readouterr().err
    then = {**circumstances(), "at": "2026-11-01T00:00:00.000Z", "commit": "c0ffee"}
    command.write(some_cells(), then, "make bench-peers", tmp_path)
    text = (tmp_path / "peers.md").read_text()
    (tmp_path / "peers.md").unlink()
    assert command.main(["--pages", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "peers.md").read_text() == text
    assert "c0ffee" in text and "2026-11-01" in text


def test_the_plot_is_xml_with_a_dot_for_each_recovery() -> None:
    cells = some_cells()
    cells["phoenix/default/hang"] = Cell(samples=(one(None, why="it hung"),))
    tree = ElementTree.fromstring(plot(CONTENDERS, cells))
    dots = [element for element in tree.iter() if element.tag.endswith("circle")]
    assert len(dots) == 2 * len(CONTENDERS)
    assert sum(element.text == "×" for element in tree.iter()) == 1


# --- who is compared --------------------------------------------------------------------------------------------------


def test_everybody_gets_the_same_faults_and_nodes_are_lost_from_the_second_on() -> None:
    for kind in KINDS:
        assert orders(kind, 5, seed=0) == orders(kind, 5, seed=0)
        assert orders(kind, 3, seed=0) == orders(kind, 5, seed=0)[:3]
        assert {order.rank for order in orders(kind, 50, seed=0)} == set(range(kind in ("node", "partition"), RANKS))


def test_keys_are_unique_and_every_setting_is_described() -> None:
    assert len(BY_KEY) == len(CONTENDERS)
    assert all(contender.note for contender in CONTENDERS)


def a_job(tmp_path: Path, contender: Contender, *, isolated: bool) -> Job:
    spares = contender.spares or contender.standby
    cluster = Cluster(nodes=RANKS, spares=spares, isolation="namespaces" if isolated else "none")
    return Job(workload=("--steps", "9"), steps=9, seed=0, cluster=cluster, directory=PartDirectory(path=tmp_path))


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.key)
def test_every_contender_has_a_command_that_trains_the_workload(
    tmp_path: Path, contender: Contender, isolated: bool
) -> None:
    environment = Environment(python="/somewhere/bin/python", versions={})
    made = contender.command(a_job(tmp_path, contender, isolated=isolated), environment)
    crew = tmp_path / "crew.json"
    trains = [made.argv]
    if crew.exists():
        members = json.loads(crew.read_text())["members"]
        trains = [tuple(member["argv"]) for member in members if not member["serves"]]
        assert len(trains) == RANKS + (contender.spares or contender.standby)
        assert len({member["name"] for member in members}) == len(members)
    for argv in trains:
        assert argv[-2:] == ("--steps", "9")


def test_an_environment_is_named_after_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.txt").write_text("torch==1\n")
    monkeypatch.setattr(environments, "LISTS", tmp_path)
    first = environments.place("some", tmp_path)
    (tmp_path / "some.txt").write_text("torch==2\n")
    assert environments.place("some", tmp_path) != first
    assert first.parent == tmp_path


def test_an_environment_that_was_broken_off_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = environments.place("nvrx")
    directory.mkdir(parents=True)
    assert environments.existing("nvrx") is None
    (directory / "versions.json").write_text('{"torch": "2.13.0"}')
    found = environments.existing("nvrx")
    assert found is not None
    assert found.versions == {"torch": "2.13.0"}


def test_every_list_pins_every_package() -> None:
    for contender in CONTENDERS:
        if contender.environment is not None:
            lines = (environments.LISTS / f"{contender.environment}.txt").read_text().splitlines()
            assert all("==" in line for line in lines if not line.startswith("#"))


def test_free_ports_are_in_a_row_and_free() -> None:
    assert free_ports(3) >= 1024


@pytest.mark.parametrize("arguments", [["--trials", "0"], ["--pairs", "1"], ["--only", "nobody"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse_options(arguments)
    assert ended.value.code == 2
    assert "benchmarks.peers:" in capsys.readouterr().err


def test_the_list_names_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert all(
        contender.key in line for contender, line in zip(CONTENDERS, capsys.readouterr().out.splitlines(), strict=True)
    )
