"""Runs of several trials, and several services on one database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from service import lifeline, store
from service.control_tables import ServiceRow
from service.settings import Settings
from tests.service.helpers import TINY, Harness, Json, Script, harness, problem
from tests.support import wait_until

pytestmark = [pytest.mark.process, pytest.mark.both_databases]

KILL: Json = {"id": "kill", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"at_step": 4}}


def finish(directory: Path, verdict: str = "PASS") -> None:
    Script(directory).result(verdict)
    (directory / "end").touch()
    wait_until(lambda: not lifeline.lives(directory), "the end of the trial's process")


async def trials(api: Harness, run: str) -> list[Json]:
    items: list[Json] = (await api.get(f"/runs/{run}/trials"))["items"]
    return items


async def test_trials_of_a_run_come_one_after_another_with_seeds_of_their_own(api: Harness) -> None:
    run = (await api.post("/runs", {"scenario": {**TINY, "faults": [KILL]}, "trials": 3})).json()
    assert run["progress"] == {"done": 0, "total": 3} and run["trials"] == [f"{run['id']}-{n}" for n in (1, 2, 3)]
    for number, verdict in enumerate(("PASS", "FAIL", "PASS"), start=1):
        api.tick()
        now = await trials(api, run["id"])
        assert [trial["state"] for trial in now].count("RUNNING") == 1
        trial = now[number - 1]
        assert (trial["state"], trial["seed"]) == ("RUNNING", TINY["seed"] + number - 1)
        (fault,) = (await api.get(f"/runs/{run['id']}/faults"))["items"]
        assert (fault["id"], fault["trial"]) == ("kill", trial["id"])
        script = Script(Path(trial["directory"]))
        script.begin()
        script.step(0)
        script.close()
        api.tick()
        assert (await api.get(f"/runs/{run['id']}"))["step"] == 0
        finish(Path(trial["directory"]), verdict)
        api.tick()
    ended = await api.until_ended(run["id"])
    assert (ended["state"], ended["verdict"], ended["progress"]) == ("FINISHED", "FAIL", {"done": 3, "total": 3})
    for trial in ended["trials"]:
        steps = await api.get(f"/runs/{run['id']}/steps", trial=trial)
        assert [step["step"] for step in steps["items"]] == [0]
    events = (await api.get(f"/runs/{run['id']}/events", limit=5000))["items"]
    assert {event["trial"] for event in events} == set(ended["trials"])
    page = await api.get("/trials", limit=2)
    rest = await api.get("/trials", limit=2, cursor=page["next"])
    assert [trial["id"] for trial in (*page["items"], *rest["items"])] == ended["trials"][::-1]
    assert [trial["number"] for trial in (await api.get("/trials", verdict="FAIL"))["items"]] == [2]
    problem(await api.client.get(f"/api/v1/runs/{run['id']}/steps", params={"trial": "nix"}), 404)


async def test_a_cancelled_run_starts_none_of_its_other_trials(api: Harness) -> None:
    run = (await api.post("/runs", {"scenario": {**TINY, "faults": [KILL]}, "trials": 2})).json()
    api.tick()
    first = (await trials(api, run["id"]))[0]
    await api.post(f"/runs/{run['id']}/cancel", {"reason": "enough"})
    assert [trial["state"] for trial in await trials(api, run["id"])] == ["RUNNING", "CANCELLED"]
    Script(Path(first["directory"])).result("UNKNOWN", error="cancelled: enough")
    (Path(first["directory"]) / "end").touch()
    ended = await api.until_ended(run["id"])
    assert ended["state"] == "CANCELLED" and [t["state"] for t in await trials(api, run["id"])] == ["CANCELLED"] * 2
    assert ended["progress"] == {"done": 1, "total": 2}, "the second one never began"
    faults = (await api.get(f"/runs/{run['id']}/faults", trial=f"{run['id']}-2"))["items"]
    assert faults[0]["state"] == "MISSED" and "enough" in faults[0]["detail"]


async def test_a_run_is_run_again_with_its_seeds(api: Harness) -> None:
    first = (await api.post("/runs", {"scenario": TINY, "trials": 3})).json()
    answer = await api.post(f"/runs/{first['id']}/again", {"reason": "to be sure"}, **{"Idempotency-Key": "k"})
    again = answer.json()
    assert answer.status_code == 202 and again["id"] != first["id"] and again["reason"] == "to be sure"
    assert (
        await api.post(f"/runs/{first['id']}/again", {"reason": "to be sure"}, **{"Idempotency-Key": "k"})
    ).json() == again
    assert [trial["seed"] for trial in await trials(api, again["id"])] == [7, 8, 9]
    assert (await api.get("/audit", target=again["id"]))["items"][0]["detail"] == {"again": first["id"]}
    unasked = (await api.client.post(f"/api/v1/runs/{first['id']}/again")).json()
    assert unasked["reason"] == f"{first['id']} once more"
    assert (await api.client.post("/api/v1/runs/nix/again")).status_code == 404


async def test_too_many_trials_or_seeds_are_refused(api: Harness) -> None:
    problem(await api.post("/runs", {"scenario": TINY, "trials": 201}), 422)
    problem(await api.post("/runs", {"scenario": TINY, "trials": 2, "seed": 2**63 - 1}), 422)


async def test_runs_are_filtered(api: Harness) -> None:
    first = await api.submit()
    second = await api.submit(name="other")
    await api.post(f"/runs/{second['id']}/cancel", {})

    async def found(**query: str) -> list[str]:
        return [run["id"] for run in (await api.get("/runs", **query))["items"]]

    assert await found(scenario="other") == [second["id"]] and await found(workload="nix") == []
    assert await found(since=second["created_at"]) == [second["id"]]
    assert await found(until=second["created_at"]) == [first["id"]]
    answer = await api.client.get("/api/v1/runs", params=[("state", "QUEUED"), ("state", "CANCELLED")])
    assert len(answer.json()["items"]) == 2
    problem(await api.client.get("/api/v1/runs", params={"commit": "a%"}), 422)


# --- several services ------------------------------------------------------------------------------------------------


@pytest.fixture
async def two(settings: Settings, tmp_path: Path) -> AsyncIterator[tuple[Harness, Harness]]:
    """Two services, each with a data directory of its own, on one database."""
    shared = settings.database_url or f"sqlite:///{tmp_path / 'shared.db'}"
    async with AsyncExitStack() as stack:
        yield tuple(  # type: ignore[misc]
            [
                await stack.enter_async_context(
                    harness(replace(settings, directory=settings.directory / name, database_url=shared))
                )
                for name in ("a", "b")
            ]
        )
    for end in settings.directory.glob("*/trials/*"):
        (end / "end").touch()


async def test_two_services_share_the_queue_and_never_a_run(two: tuple[Harness, Harness]) -> None:
    first, second = two
    runs = [(await first.post("/runs", {"scenario": TINY, "trials": 2})).json()["id"] for _ in range(2)]
    for api in (first, second, first, second):
        api.tick()
    taken = {}
    for run in runs:
        (one, other) = await trials(first, run)
        assert (one["state"], other["state"]) == ("RUNNING", "QUEUED")
        taken[run] = one["service"]
        assert Path(one["directory"]).is_dir()
    assert set(taken.values()) == {api.service.executor.service for api in two}
    owner = next(api for api in two if api.service.executor.service == taken[runs[0]])
    stranger = first if owner is second else second
    directory = Path((await trials(first, runs[0]))[0]["directory"])
    finish(directory)
    stranger.tick()
    assert (await trials(first, runs[0]))[0]["state"] == "RUNNING", "followed by the one that started it"
    owner.tick()
    state = await trials(first, runs[0])
    assert [trial["state"] for trial in state] == ["FINISHED", "RUNNING"]
    assert state[1]["service"] == taken[runs[0]], "the next trial runs on the same machine"


async def test_a_service_that_is_never_heard_of_again_loses_its_run(two: tuple[Harness, Harness]) -> None:
    first, second = two
    run = (await second.post("/runs", {"scenario": TINY, "trials": 2})).json()["id"]
    first.tick()
    lost = (await trials(second, run))[0]
    directory = Path(lost["directory"])
    second.service.executor._beat()
    assert (await trials(second, run))[0]["state"] == "RUNNING", "its lease is not over"
    with second.service.database.write() as session:
        row = session.get_one(ServiceRow, first.service.executor.service)
        row.heartbeat_at = store.now() - timedelta(seconds=second.service.settings.lease_s + 1)
    second.service.executor._beat()
    second.tick()
    state = await trials(second, run)
    assert [trial["state"] for trial in state] == ["ABANDONED", "RUNNING"]
    assert state[0]["verdict"] == "UNKNOWN" and "nothing was heard of the service" in state[0]["error"]
    assert state[1]["service"] == second.service.executor.service
    # The first one comes back, finds that its trial was given up, and lets it be.
    finish(directory)
    first.tick()
    assert (await trials(second, run))[0]["state"] == "ABANDONED"
    finish(Path(state[1]["directory"]))
    second.tick()
    ended = await second.get(f"/runs/{run}")
    assert (ended["state"], ended["verdict"]) == ("ABANDONED", "UNKNOWN") and "trial 1 of 2" in ended["error"]


async def test_nothing_is_started_while_the_disk_is_full(api: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await api.submit()
    with monkeypatch.context() as patch:
        patch.setattr("service.executor.trouble_with", lambda path: "only 0 MiB are free")
        api.tick()
        assert (await api.get(f"/runs/{run['id']}"))["state"] == "QUEUED"
        assert api.service.executor.trouble == "only 0 MiB are free"
    api.tick()
    assert (await api.get(f"/runs/{run['id']}"))["state"] == "RUNNING" and api.service.executor.trouble == ""
