"""Annotations, and suites as runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from service import catalog
from tests.service.helpers import TINY, Harness, problem

SUITE = """\
name: two
description: Two of them.
seeds: [1, 2]
scenarios:
  - scenario: {name: first, workload: gpt-tiny, steps: 5}
  - scenario: {name: second, workload: gpt-tiny, steps: 5}
    seeds: [7]
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios" / "suites").mkdir(parents=True)
    (tmp_path / "scenarios" / "suites" / "two.yaml").write_text(SUITE)
    (tmp_path / "scenarios" / "suites" / "broken.yaml").write_text("name: broken\nscenarios: 5\n")
    monkeypatch.setattr(catalog, "directories", lambda: [tmp_path / "scenarios"])


async def test_a_note_is_kept_found_and_removed(api: Harness) -> None:
    first = (await api.post("/annotations", {"text": "new kernel", "at": "2026-11-01T02:00:00+01:00"})).json()
    assert first["at"] == "2026-11-01T01:00:00Z" and first["by"] == "local"
    second = (
        await api.post("/annotations", {"text": "slower, and known", "scenario": "demo", "commit": "abcd"})
    ).json()
    assert (await api.get("/annotations"))["items"] == [second, first]
    assert (await api.get("/annotations", scenario="other"))["items"] == [first]
    problem(await api.post("/annotations", {"text": " "}), 422)
    assert "no run 'nix'" in problem(await api.post("/annotations", {"text": "x", "run": "nix"}), 422)["detail"]
    for commit in ("zzzzzzzzz", "abc", "ABCDEF"):
        answer = problem(await api.post("/annotations", {"text": "x", "commit": commit}), 422)
        assert answer["detail"].startswith("commit: is no commit: give at least 4 of its digits")
    mine = {"text": "x", "scenario": "tiny"}
    assert "no scenario 'tiny'" in problem(await api.post("/annotations", mine), 422)["detail"]
    run = (await api.submit())["id"]
    assert (await api.post("/annotations", mine)).status_code == 201, "it was submitted here"
    assert (await api.post("/annotations", {"text": "mine", "run": run})).json()["run"] == run
    problem(await api.post("/annotations", {"text": "x", "at": "2026-11-01T02:00:00"}), 422)
    assert (await api.client.delete(f"/api/v1/annotations/{first['id']}")).status_code == 204
    problem(await api.client.delete(f"/api/v1/annotations/{first['id']}"), 404)
    removed = (await api.get("/audit", action="annotation.delete"))["items"][0]
    assert removed["detail"] == {"text": "new kernel"}


@pytest.mark.usefixtures("suite")
async def test_a_suite_is_one_run_of_all_its_trials(api: Harness) -> None:
    (shown,) = (await api.get("/suites"))["items"]
    assert shown == await api.get("/suites/two")
    assert (shown["title"], shown["scenarios"], shown["trials"]) == ("Two of them.", ["first", "second"], 3)
    run = (await api.post("/runs", {"suite": "two"})).json()
    assert run["suite"] == "two" and run["progress"]["total"] == 3
    trials = (await api.get(f"/runs/{run['id']}/trials"))["items"]
    assert [(trial["scenario"], trial["seed"]) for trial in trials] == [("first", 1), ("first", 2), ("second", 7)]
    assert (await api.get("/runs", suite="two"))["items"] == [run]
    schedule = {"name": "nightly", "kind": "cron", "cron": "@daily", "run": {"suite": "two"}}
    assert (await api.post("/schedules", schedule)).status_code == 201


@pytest.mark.usefixtures("suite")
async def test_suites_that_cannot_be_are_refused(api: Harness) -> None:
    problem(await api.post("/runs", {"suite": "nix"}), 404)
    problem(await api.client.get("/api/v1/suites/nix"), 404)
    assert "scenarios" in problem(await api.post("/runs", {"suite": "broken"}), 422)["detail"]
    for more in ({"seed": 3}, {"trials": 2}, {"scenario": TINY}):
        problem(await api.post("/runs", {"suite": "two", **more}), 422)
    assert (await api.get("/runs"))["items"] == []
