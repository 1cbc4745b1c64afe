"""The history in the database: what goes in once, what comes out, and what it costs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from chaos.compare.samples import Code, TrialSample
from chaos.git import Repository
from chaos.provenance import Provenance
from chaos.record import Spec
from chaos.scenario import parse_scenario
from service import archive, history, importing
from service.database import Database
from service.history import Finished
from service.history_tables import DigestRow, PointRow, SampleRow
from service.indexer import Indexer
from service.tables import Run
from tests.comparing import MACHINE, SCENARIO, Scratch, sample, times
from tests.service.helpers import Harness, problem, statements
from tests.service.test_archive import a_run, elsewhere
from tests.service.test_comparisons import OLD, get, spread, write


def finished(one: TrialSample) -> Finished:
    """As if it had been read: the specification only tells one trial from another here."""
    provenance = Provenance(commit=one.code.commit, dirty=False, versions={}, machine=dict(one.machine))
    spec = Spec(trial=one.trial, scenario=parse_scenario(SCENARIO), provenance=provenance, created_at=one.at)
    return Finished(spec=spec, sample=one, directory=Path(f"/trials/{one.trial}"))


def fill(database: Database, *samples: TrialSample) -> int:
    with database.write() as session:
        return history.add(session, [finished(one) for one in samples])


@pytest.mark.both_databases
async def test_what_there_is_to_choose_from(api: Harness) -> None:
    database = api.service.database
    assert (await api.get("/history/series"))["items"] == []
    fill(database, *(sample(i, code=Code(commit=f"0{i}" * 20), session=f"s{i}") for i in range(3)))
    two = {"x": times(), "y": {"replacement": 1.0}}
    other: dict[str, Any] = {
        "scenario": "b",
        "times": two,
        "machine": {**MACHINE, "cores": 4},
        "at": "2026-11-30T00:00:00.000Z",
    }
    fill(database, *(sample(10 + i, **other) for i in range(2)), sample(20, judged=False, times={}, scenario="c"))
    found = await api.get("/history/series")
    assert [(item["scenario"], item["fault"], item["trials"], item["sessions"]) for item in found["items"]] == [
        ("b", "x", 2, 1),
        ("b", "y", 2, 1),
        ("c", "", 1, 1),
        ("kill-one", "kill", 3, 3),
    ]
    assert found["items"][1]["metrics"] == ["success", "replacement"]
    assert [code["name"][:2] for code in found["codes"]] == ["aa", "02", "01", "00"]
    assert [(machine["trials"], machine["machine"]["cores"]) for machine in found["machines"]] == [(4, 2), (2, 4)]
    assert not found["seeded"]


def day(number: int, of: int, **changes: Any) -> TrialSample:
    """A session of one trial."""
    at = f"2026-11-{number:02}T02:00:00.000Z"
    values: dict[str, Any] = {"code": Code(commit=f"{of:02}" * 20), "session": f"s{number}", "at": at, **changes}
    return sample(number, trial=f"{number}-{of}", **values)


@pytest.mark.both_databases
async def test_an_old_code_measured_again_is_where_it_was_and_the_last_points_are_the_newest_codes(
    api: Harness,
) -> None:
    old = {"machine": {**MACHINE, "cores": 4}}
    days = [day(number, number) for number in range(1, 9)]
    fill(api.service.database, *days, day(9, 2), day(10, 6), day(5, 90, **old), day(7, 2, **old))

    async def codes(**query: str | int) -> list[int]:
        found = await api.get("/history", scenario="kill-one", **query)
        return [int(point["code"][:2]) for point in found["points"]]

    assert await codes() == [2, 90, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8]
    assert await codes(limit=4) == [6, 6, 7, 8]
    assert await codes(limit=3) == [6, 7, 8]
    assert await codes(limit=11) == [90, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8]


@pytest.mark.both_databases
async def test_the_history_of_a_fault_has_the_sessions_that_had_it(api: Harness) -> None:
    new = {"shape": {"name": "kill-one", "faults": [{"id": "b"}]}, "times": {"b": times()}}
    none = {**new, "times": {}, "judged": False}
    named = {"times": {"zz": times()}}
    fill(api.service.database, *(day(i, i, **named) for i in range(1, 6)), day(6, 6, **new), day(7, 7, **none))
    fill(api.service.database, day(8, 8, **new, machine={**MACHINE, "cores": 4}))
    series = (await api.get("/history/series"))["items"]
    fields = ("fault", "current", "trials", "sessions", "last_at")
    assert [(*(item[name] for name in fields), len(item["fingerprints"])) for item in series] == [
        ("b", True, 3, 3, "2026-11-08T02:00:00Z", 2),
        ("zz", False, 5, 5, "2026-11-05T02:00:00Z", 1),
    ]
    asked: list[tuple[dict[str, str | int], str]] = [
        ({}, "678"),
        ({"fault": "b"}, "678"),
        ({"fault": "zz", "limit": 3}, "345"),
    ]
    for query, codes in asked:
        found = await api.get("/history", scenario="kill-one", **query)
        assert "".join(point["code"][1] for point in found["points"]) == codes
    assert (await api.get("/history", scenario="kill-one"))["fault"] == "b"


async def test_a_commit_that_a_bisection_measured_stands_before_its_successors(api: Harness, tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "scratch")
    commits = [scratch.commit(f"number {number}") for number in range(6)]
    api.service.known = replace(api.service.known, repository=Repository(root=scratch.root))
    measured = (0, 5, 3, 2, 4)  # a night, the next night, and then what lies between
    fill(api.service.database, *(day(i + 1, 0, code=Code(commit=commits[at])) for i, at in enumerate(measured)))
    points = (await api.get("/history", scenario="kill-one"))["points"]
    assert [point["subject"] for point in points] == [f"number {number}" for number in (0, 2, 3, 4, 5)]


async def test_a_file_holds_several_metrics(api: Harness) -> None:
    fill(api.service.database, day(1, 1), day(2, 2))
    answer = await api.client.get("/api/v1/history/file?scenario=kill-one&metric=detect&metric=restore")
    rows = [line.split(",")[-2:] for line in answer.text.splitlines()]
    assert rows == [["metric", "seconds"], *[["detect", "0.005"]] * 2, *[["restore", "0.03"]] * 2]


async def test_a_note_on_a_commit_stands_at_its_point(api: Harness) -> None:
    fill(api.service.database, *(day(number, number) for number in (1, 2, 3)))
    await api.client.post("/api/v1/annotations", json={"text": "the copy is verified", "commit": "0202"})
    (note,) = (await api.get("/history", scenario="kill-one"))["annotations"]
    assert (note["index"], note["commit"], bool(note["by"])) == (1, "0202", True)


@pytest.mark.both_databases
def test_what_comes_out_is_what_went_in(api: Harness) -> None:
    database = api.service.database
    lost = sample(1, times={"kill": {**times(), "recovery": float("inf")}}, versions={"torch": "2.13.0"})
    assert fill(database, sample(0), lost) == 2
    assert fill(database, sample(0), lost) == 0
    with database.read() as session:
        points, _ = history.newest_points(session, "kill-one", 10)
        assert history.samples(session, points) == (sample(0), lost)
        assert [point.trials for point in points] == [2]
        assert history.newest_points(session, "kill-one", 10, commits={"b" * 40})[0] == []
        assert len(history.newest_points(session, "kill-one", 10, commits={"a" * 40})[0]) == 1


async def test_a_copy_counts_once_and_what_was_moved_is_not_read_again(
    api: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = api.service.settings.directory
    write(home, OLD, spread(count=3))
    assert len((await get(api, "history", scenario="kill-one"))["points"][0]["values"]) == 3
    shutil.copytree(home / "trials", home / "nightly" / "copy")
    assert len((await get(api, "history", scenario="kill-one"))["points"][0]["values"]) == 3
    shutil.rmtree(home / "nightly")
    (home / "trials").rename(home / "nightly")
    api.service.indexer.tick()
    monkeypatch.setattr("chaos.collect._read", lambda *_: pytest.fail("read again"))
    Indexer(api.service.database, home).tick()


async def test_one_that_cannot_be_read_keeps_no_other_out(api: Harness, caplog: pytest.LogCaptureFixture) -> None:
    home = api.service.settings.directory
    write(home, OLD, spread(count=2))
    broken = next((home / "trials").iterdir()) / "spec.json"
    broken.write_text(json.dumps({**json.loads(broken.read_text()), "created_at": "yesterday"}))
    found = await get(api, "history", scenario="kill-one")
    assert len(found["points"][0]["values"]) == 1
    assert "in no history" in caplog.text


async def test_what_the_service_ran_counts_with_its_end_and_wherever_it_is_imported(
    api: Harness, tmp_path: Path
) -> None:
    run = await a_run(api, trials=2)
    point = (await api.get("/history", scenario="tiny"))["points"][0]
    assert point["trials"] == run["trials"]
    file = tmp_path / "runs.tar.gz"
    archive.export(api.service.database, [], file)
    other = elsewhere(api.service.settings, tmp_path)
    for _ in range(2):
        list(importing.import_all(other, [file], tmp_path / "there"))
    with other.read() as session:
        assert {row.trial for row in session.scalars(select(SampleRow))} == set(run["trials"])
        assert [point.trials for point in session.scalars(select(PointRow))] == [2]
    other.close()


async def test_imports_of_before_there_was_a_history_are_found(api: Harness, tmp_path: Path) -> None:
    run = await a_run(api)
    other = elsewhere(api.service.settings, tmp_path)
    list(importing.import_all(other, [api.service.settings.trials], tmp_path))
    with other.write() as session:
        for table in (SampleRow, PointRow, DigestRow):
            session.query(table).delete()
    Indexer(other, tmp_path / "elsewhere").tick()
    with other.read() as session:
        assert [row.trial for row in session.scalars(select(SampleRow))] == run["trials"]
    other.close()


@pytest.mark.both_databases
async def test_what_was_answered_before_holds_until_a_trial_or_a_remark_is_added(api: Harness) -> None:
    async def told() -> tuple[list[str], list[str], int]:
        history = await api.get("/history", scenario="kill-one")
        series = await api.get("/history/series")
        return (
            [p["code"][:2] for p in history["points"]],
            [r["text"] for r in history["annotations"]],
            len(series["codes"]),
        )

    fill(api.service.database, day(1, 1))
    assert await told() == await told() == (["01"], [], 1)
    with statements(api.service.database) as seen:
        await told()
    assert not any("samples" in asked for asked, _ in seen)
    fill(api.service.database, day(2, 2))
    assert await told() == (["01", "02"], [], 2)
    note = await api.client.post("/api/v1/annotations", json={"text": "a new kernel", "scenario": "kill-one"})
    assert await told() == (["01", "02"], ["a new kernel"], 2)
    await api.client.delete(f"/api/v1/annotations/{note.json()['id']}")
    assert await told() == (["01", "02"], [], 2)
    for _ in range(2):
        assert (await api.client.get("/api/v1/history?scenario=nothing")).status_code == 404


async def test_a_request_asks_as_often_however_many_trials_there_are(api: Harness) -> None:
    paths = ("/history/series", "/history?scenario=kill-one&limit=5", f"/comparisons?base={'a' * 8}&head={'a' * 8}")
    counts: list[list[int]] = []
    for many in (20, 200):
        fill(
            api.service.database, *(replace(sample(i), session=f"s{i // 2}", trial=f"{many}-{i}") for i in range(many))
        )
        counts.append([])
        for path in paths:
            with statements(api.service.database) as seen:
                assert (await api.client.get(f"/api/v1{path}")).status_code == 200
            counts[-1].append(len(seen))
    assert counts[0] == counts[1], counts


@pytest.mark.both_databases
async def test_a_branch_shows_the_points_and_runs_of_its_commits(api: Harness, tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "scratch")
    first, second = scratch.commit("first"), scratch.commit("second")
    scratch.git("checkout", "--quiet", "-b", "side", first)
    third = scratch.commit("third")
    scratch.git("update-ref", "refs/remotes/origin/main", second)
    scratch.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    scratch.git("branch", "empty", scratch.git("commit-tree", "-m", "no parent", f"{first}^{{tree}}"))
    api.service.known = replace(api.service.known, repository=Repository(root=scratch.root))
    fill(api.service.database, *(sample(i, code=Code(commit=c)) for i, c in enumerate((first, second, third))))
    assert sorted((await api.get("/history/series"))["branches"]) == ["main", "origin/main", "side"]
    for branch, commits in (("main", [first, second]), ("origin/main", [first, second]), ("side", [first, third])):
        found = await api.get("/history", scenario="kill-one", branch=branch)
        assert [point["code"] for point in found["points"]] == commits
    for path in ("/history?scenario=kill-one&branch=gone", "/runs?branch=gone"):
        said = problem(await api.client.get(f"/api/v1{path}"), 404)["detail"]
        assert "there is no branch 'gone'" in said and "side" in said
    none = problem(await api.client.get("/api/v1/history?scenario=kill-one&branch=empty"), 404)["detail"]
    assert "of scenario 'kill-one' on branch 'empty'" in none
    run = await api.submit()
    with api.service.database.write() as session:
        session.execute(update(Run).values(commit=third, service_id=api.service.executor.service))
    assert [one["id"] for one in (await api.get("/runs", branch="side"))["items"]] == [run["id"]]
    assert (await api.get("/runs", branch="main"))["items"] == []
    (here,) = (await api.get("/services"))["items"]
    assert len((await api.get("/runs", host=here["host"]))["items"]) == 1 and len(here["fingerprint"]) == 12
    assert (await api.get("/runs", host="elsewhere"))["items"] == []
