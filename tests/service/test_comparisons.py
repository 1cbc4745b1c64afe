"""Comparisons and histories over REST: the numbers of the command line, and a problem for what is not there."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from chaos.provenance import Provenance
from chaos.record import Result, Spec, TrialDirectory
from chaos.recoveries import RecoveryRecord
from chaos.scenario import parse_scenario
from chaos.verdict import Verdict
from tests.comparing import MACHINE, SCENARIO, USUAL, command
from tests.service.helpers import Harness

OLD, NEW = "a" * 40, "b" * 40


def write(home: Path, commit: str, factors: list[float], *, diff: str | None = None, night: int = 1) -> None:
    """Finished trials of a commit, as `phoenix trial` leaves them."""
    code = Provenance(commit=commit, dirty=diff is not None, diff=diff, versions={}, machine=MACHINE, boot="b")
    for number, factor in enumerate(factors):
        phases = {name: length * factor for name, length in USUAL.items()}
        total, at = sum(phases.values()), f"2026-11-{night:02}T02:{number:02}:00.000Z"
        directory = TrialDirectory(home / "trials" / f"{commit[:4]}{diff or ''}-{night}-{number}")
        directory.path.mkdir(parents=True)
        name = directory.path.name
        directory.write_spec(Spec(trial=name, scenario=parse_scenario(SCENARIO), provenance=code, created_at=at))
        recovery = RecoveryRecord(
            fault={"id": "kill"}, target={"rank": 1, "worker": "w1"}, blamed=None, recovery_s=total,
            downtime_s=total - phases["recompute"], phases=phases, lost_steps=1, generation=1, resume_step=20,
        )  # fmt: skip
        directory.write_result(
            Result(
                verdict=Verdict.PASS, checks={}, recoveries=(recovery,), steps_committed=40, error=None, finished_at=at
            )
        )


def spread(factor: float = 1.0, count: int = 10) -> list[float]:
    return [factor * (1 + 0.004 * number) for number in range(count)]


async def get(api: Harness, path: str, status: int = 200, **query: str) -> Any:
    api.service.indexer.tick()  # as its thread would
    answer = await api.client.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_two_commits_are_compared_and_the_command_says_the_same(api: Harness) -> None:
    home = api.app.state.service.settings.directory
    write(home, OLD, spread())
    write(home, NEW, spread(1.3))
    found = await get(api, "comparisons", base=OLD[:8], head=NEW)
    assert (found["verdict"], found["exit_code"]) == ("regression", 1)
    total = next(row for row in found["rows"] if row["metric"] == "recovery")
    assert total["ratio"] == pytest.approx(1.3, abs=0.01)
    assert (total["unit"], total["base"]["n"]) == ("trial", 10)
    url = api.service.settings.database_url
    done = command("compare", OLD[:8], NEW, "--json", "--dir", str(home), *(["--database", url] if url else []))
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(api.service.known.compare(OLD[:8], NEW).to_json()))
    said = json.loads(done.stdout)
    assert [row["ratio"] for row in said["rows"]] == [row["ratio"] for row in found["rows"]]


async def test_new_trials_are_seen_by_the_next_request(api: Harness) -> None:
    home = api.app.state.service.settings.directory
    write(home, OLD, spread())
    await get(api, "comparisons", 404, base=OLD, head=NEW)
    write(home, NEW, spread())
    assert (await get(api, "comparisons", base=OLD, head=NEW))["exit_code"] == 0
    (home / "nightly").mkdir()
    (home / "trials").rename(home / "nightly" / "smoke-20261130")
    assert (await get(api, "comparisons", base=OLD, head=NEW))["exit_code"] == 0


async def test_a_dirty_tree_is_another_code(api: Harness) -> None:
    home = api.app.state.service.settings.directory
    write(home, OLD, spread())
    write(home, NEW, spread(), diff="d1ffd1ffd1ff")
    problem = await get(api, "comparisons", 404, base=OLD, head=NEW[:9])
    assert "only with uncommitted changes" in problem["detail"]
    assert "d1ffd1ffd1ff" in problem["detail"]
    found = await get(api, "comparisons", base=OLD, head=f"{NEW[:9]}-d1ff")
    assert found["head"]["dirty"] is True


async def test_what_is_no_revision_is_refused(api: Harness) -> None:
    for bad in ("--output=x", "a b", "", "x" * 300, "a\nb"):
        problem = await get(api, "comparisons", 422, base=OLD, head=bad)
        assert problem["type"] == "urn:phoenix:problem:invalid-request"


async def test_what_is_not_known_lists_what_is(api: Harness) -> None:
    home = api.app.state.service.settings.directory
    empty = await get(api, "comparisons", 404, base=OLD, head=NEW)
    assert "the history is empty" in empty["detail"]
    write(home, OLD, spread(count=1))
    problem = await get(api, "comparisons", 404, base="c0ffee", head=OLD)
    assert OLD[:9] in problem["detail"]


async def test_a_history_and_what_to_choose_from(api: Harness) -> None:
    home = api.app.state.service.settings.directory
    for night in range(1, 15):
        commit = f"{night:02}" * 20
        write(home, commit, spread(1.0 if night <= 9 else 1.4, count=3), night=night)
    found = await get(api, "history", scenario="kill-one")
    assert len(found["points"]) == 14
    assert [change["index"] for change in found["change_points"]] == [9]
    assert found["noise"][0]["needed"]["20"] == 6
    assert len((await get(api, "history", scenario="kill-one", limit="5"))["points"]) == 5
    phase = await get(api, "history", scenario="kill-one", metric="replace", fault="kill")
    assert phase["points"][0]["median"] == pytest.approx(0.1, abs=0.01)
    choice = await get(api, "history/series")
    assert choice["items"][0]["scenario"] == "kill-one"
    assert choice["codes"][0]["name"] == "14" * 20
    assert choice["machines"][0]["trials"] == 42
    fingerprint = choice["machines"][0]["fingerprint"]
    assert (await get(api, "history", scenario="kill-one", fingerprint=fingerprint))["points"]


async def test_a_history_that_is_not_there_is_a_problem(api: Harness) -> None:
    write(api.app.state.service.settings.directory, OLD, [1.0])
    for query, status in (
        ({"scenario": "nothing"}, 404),
        ({"scenario": "kill-one", "fault": "nothing"}, 404),
        ({"scenario": "kill-one", "metric": "nothing"}, 422),
        ({"scenario": "kill-one", "fingerprint": "nothing"}, 404),
        ({}, 422),
    ):
        assert "detail" in await get(api, "history", status, **query)


def test_the_command_compares_directories_and_writes_every_form(tmp_path: Path) -> None:
    write(tmp_path / "old", OLD, spread())
    write(tmp_path / "new", NEW, spread(1.3))
    forms = ["--github", "--markdown", str(tmp_path / "c.md"), "--junit", str(tmp_path / "c.xml")]
    done = command("compare", str(tmp_path / "old"), str(tmp_path / "new"), *forms)
    assert done.returncode == 1, done.stderr
    assert "kill-one kill recovery: regression" in done.stdout
    assert "::error" in done.stdout
    assert (tmp_path / "c.md").read_text().startswith("<!-- phoenix-compare -->")
    assert "<failure" in (tmp_path / "c.xml").read_text()


def test_an_empty_directory_and_an_unknown_commit_are_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing = [str(tmp_path / name) for name in ("old", "new")]
    (tmp_path / "home" / "trials").mkdir(parents=True)
    for arguments, said in (
        ((str(tmp_path / "empty"), str(tmp_path / "empty")), "holds no finished trial"),
        (missing, f"phoenix: there is no directory {missing[0]} and no directory {missing[1]}\n"),
        (("HEAD", "nights/new"), "phoenix: there is no directory nights/new\n"),
        (("no-such-branch", "HEAD"), "there is no commit 'no-such-branch'"),
        (("no-such-branch", "HEAD"), "nor is there a directory no-such-branch"),
        (("HEAD", "HEAD"), "the history is empty"),
        ((OLD, NEW, "--ab"), "name at least one scenario"),
        ((OLD, NEW, "--scenario", "nix"), "no trial of a scenario 'nix' is known"),
        ((OLD, NEW, "--json", "--markdown", "-"), "one document"),
        ((OLD, NEW, "--ab", "--junit", "-", "--markdown", "-"), "one document"),
        ((OLD, NEW, "--json", "--github"), "one document"),
    ):
        done = command("compare", *arguments, "--dir", str(tmp_path / "home"))
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


async def test_comparisons_and_histories_are_files_as_well(api: Harness) -> None:
    home = api.service.settings.directory
    write(home, OLD, spread())
    write(home, NEW, spread(1.3))
    found = await get(api, "comparisons", base=OLD, head=NEW)
    texts = {}
    for form, kind in (("markdown", "text/markdown"), ("junit", "application/xml"), ("csv", "text/csv")):
        answer = await api.client.get(f"/api/v1/comparisons/file?base={OLD}&head={NEW}&form={form}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-disposition"].startswith('attachment; filename="compare.')
        texts[form] = answer.text
    assert texts["markdown"].startswith("<!-- phoenix-compare -->") and "<failure" in texts["junit"]
    rows = list(csv.DictReader(texts["csv"].splitlines()))
    assert [row["metric"] for row in rows] == [row["metric"] for row in found["rows"]]
    assert float(rows[0]["head_trials"]) == 10
    answer = await api.client.get("/api/v1/history/file?scenario=kill-one&metric=replace")
    lines = list(csv.DictReader(answer.text.splitlines()))
    assert len(lines) == 20 and float(lines[0]["seconds"]) == pytest.approx(0.1) and lines[0]["code"] == OLD
    assert (await api.client.get("/api/v1/history/file?scenario=nothing")).status_code == 404
    assert (await api.client.get(f"/api/v1/comparisons/file?base={OLD}&head={'c' * 40}&form=csv")).status_code == 404
