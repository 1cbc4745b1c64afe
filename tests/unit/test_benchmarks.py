"""The benchmarks' arithmetic and their pages; what they measure is measured by `make bench`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import overhead, recovery
from benchmarks.clients import Read, Refused, read_at, watched
from benchmarks.gated import Snapshots
from benchmarks.overhead import Pair
from benchmarks.report import circumstances
from benchmarks.service_beside import READS, Block, Watched, judged, quantile
from benchmarks.stats import Spread, paired_ratio
from chaos.faults import Rank
from chaos.triggers import OnPhase

TIMES = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=2, max_size=20)


def test_a_spread_is_median_and_range() -> None:
    assert Spread(values=(0.1, 0.3, 0.2)).text(unit=1000) == "200 (100-300)"
    assert Spread(values=()).text() == "-"


@settings(deadline=None)  # a deadline would judge the machine
@given(TIMES)
def test_exchanging_the_arms_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    treated, baseline = zip(*pairs, strict=True)
    there = paired_ratio(treated, baseline, draws=200)
    back = paired_ratio(baseline, treated, draws=200)
    assert there.value * back.value == pytest.approx(1.0)
    assert there.low <= there.value * (1 + 1e-9)
    assert there.high >= there.value * (1 - 1e-9)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """400 experiments of 24 noisy pairs with a true ratio of 1.02; a percentile interval of 24 covers about 93 %."""
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        treated = 1.02 * np.exp(generator.normal(0, 0.05, 24))
        ratio = paired_ratio(treated.tolist(), [1.0] * 24, draws=500)
        covered += ratio.low <= 1.02 <= ratio.high
    assert 0.89 <= covered / 400 <= 0.98


def test_one_pair_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two pairs, there is 1"):
        paired_ratio([1.0], [1.0])


def test_the_recovery_scenario_spreads_faults_over_phases_and_ranks() -> None:
    scenario = recovery.scenario_of(1, recovery.parse_options(["--spacing", "20"]))
    assert len(scenario.faults) == 8
    steps = [fault.trigger.step for fault in scenario.faults if isinstance(fault.trigger, OnPhase)]
    assert steps == [20 * number for number in range(1, 9)]
    assert scenario.steps > max(step or 0 for step in steps)
    assert {fault.target.rank for fault in scenario.faults if isinstance(fault.target, Rank)} == {0, 1, 2, 3}
    for kind in recovery.KINDS:
        triggers = [fault.trigger for fault in scenario.faults if fault.kind == kind]
        assert {trigger.phase for trigger in triggers if isinstance(trigger, OnPhase)} == set(recovery.PHASES)


def a_sample(recovery_s: float) -> dict[str, object]:
    phases = {"detect": 0.01, "quiesce": 0.02, "replace": 0.1, "reconstruct": 0.0, "restore": None, "recompute": 0.3}
    fault = {"id": "process_kill-in-backward-of-trial-0", "kind": "process_kill"}
    return {
        "fault": fault,
        "phases": phases,
        "recovery_s": recovery_s,
        "downtime_s": None,
        "lost_steps": 1,
        "spare_ready": True,
    }


def test_a_recovery_page_shows_what_is_known_and_dashes_for_the_rest() -> None:
    rows = recovery.rows([a_sample(0.5), a_sample(0.7)])
    assert [row[0].strip() for row in rows] == ["process_kill", "in backward"]
    assert rows[0][1] == "2"
    assert rows[0][recovery.COLUMNS.index("recovery") + 2] == "600 (500-700)"
    assert rows[0][recovery.COLUMNS.index("restore") + 2] == "-"
    assert rows[0][-1] == "1"


def test_an_overhead_page_charges_what_the_waiting_job_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    pair = Pair(
        session=0,
        treated_s=1.0,
        baseline_s=1.0,
        treated_cpu_s=2.2,
        baseline_cpu_s=2.0,
        treated_idle_cores=0.05,
        baseline_idle_cores=0.01,
        snapshots=Snapshots(stall_share=0.002, copied=32e6, sent=16e6),
    )
    assert overhead.hidden([pair, pair]) == pytest.approx(0.02)
    where = circumstances()
    page = overhead.page([pair, pair], where, "make bench")
    assert "**1.000** (1.000-1.000)" in page
    assert "hardly touches: 1.100" in page
    assert "the ratio is 1.020 (1.020-1.020)" in page
    assert "0.20 % of the step" in page and "copied 32.0 MB and sent 16.0 MB in a step" in page


@pytest.mark.parametrize("arguments", [["--pairs", "1"], ["--block-steps", "1"], ["--sessions", "0"], ["--ranks", "0"]])
def test_too_little_to_measure_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        overhead.parse_options(arguments)
    assert ended.value.code == 2
    assert "needs at least 2 pairs" in capsys.readouterr().err


def test_options_of_the_workload_follow_two_dashes() -> None:
    options: argparse.Namespace = overhead.parse_options(["--pairs", "3", "--", "--layers", "2"])
    assert options.workload == ["--layers", "2"]


# --- the service beside a training -----------------------------------------------------------------------------------


def block(readers: bool, step_s: float, read_s: float = 0.01) -> Block:
    reads = tuple(Read(name=READS[number % len(READS)], seconds=read_s) for number in range(200 * readers))
    return Block(
        readers=readers, steps_s=(step_s,) * 5, service_cores=0.5, clients_cores=0.1, reads=reads, events=(7,) * readers
    )


def test_the_service_beside_a_training_is_judged_by_pairs() -> None:
    pairs = [block(readers, step * (1.02 if readers else 1.0)) for step in (0.1, 0.2) for readers in (False, True)]
    found = judged(pairs)
    assert found["missed"] == [] and found["change"] == pytest.approx(0.02) and found["ratio"]["pairs"] == 2
    assert found["paths"]["/metrics"] == {"count": 20, "median": 0.01, "p99": 0.01, "greatest": 0.01}
    slow = judged([*pairs, block(False, 0.1), block(True, 0.2, read_s=0.3), block(False, 0.1), block(True, 0.2)])
    assert len(slow["missed"]) == 2 and "0.300 s" in slow["missed"][0] and "more than 3%" in slow["missed"][1]


def test_a_quantile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.99), quantile(values, 0.5), quantile(values, 1.0), quantile([3.0], 0.99)) == (
        99.0,
        50.0,
        100.0,
        3.0,
    )


def test_only_steps_that_every_rank_committed_within_a_block_count() -> None:
    second = 10**9
    events = [
        {"step": step, "at": step * second + rank, "offset": step * 2 + rank} for step in range(6) for rank in (0, 1)
    ]
    pages = [events[:-1], []]

    class Told:
        def get(self, path: str, **query: object) -> dict[str, object]:
            return {"items": pages.pop(0)}

    training = Watched(api=Told(), run="r", ranks=2)  # type: ignore[arg-type]
    training.look()
    assert (training.last_step, training.offset) == (5, 10)
    assert training.steps_between(second, 4 * second + 1) == (1.0, 1.0, 1.0)
    assert training.steps_between(0, 9 * second) == (1.0, 1.0, 1.0, 1.0), "step 5 is not there on both ranks"


async def test_reads_are_due_at_their_instants_and_streams_are_counted() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client has gone
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
                if path == b"/stream":
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\nid: 1\ndata: x\n\nid: 2\ndata: y\n\n")
                else:
                    status = b"404 Not Found" if path == b"/nothing" else b"200 OK"
                    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with watched(url, "/stream", 3) as seen:
        reads = await read_at(url, [("one", "/1"), ("two", "/2")], rate=1000, for_s=0.01, connections=2)
        async with asyncio.timeout(10):
            while seen != [2, 2, 2]:
                await asyncio.sleep(0.001)
    assert [read.name for read in reads].count("one") == 5 == len(reads) - 5
    with pytest.raises(Refused, match="404 Not Found"):
        await read_at(url, [("none", "/nothing")], rate=1000, for_s=0.002, connections=1)
    server.close()
