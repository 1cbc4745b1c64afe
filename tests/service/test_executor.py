"""Trials as processes: started once, followed to their end, found again."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from service import lifeline
from service.settings import Settings
from tests.service.helpers import Harness, Json, Script, harness
from tests.support import wait_until

pytestmark = pytest.mark.process


def end(directory: Path) -> None:
    (directory / "end").touch()
    wait_until(lambda: not lifeline.lives(directory), "the end of the trial's process")


async def state(api: Harness, run: str) -> Json:
    api.tick()
    return await api.get(f"/runs/{run}")


async def test_a_run_ends_with_the_result_of_its_trial(api: Harness) -> None:
    run, directory = await api.started()
    assert run["state"] == "RUNNING" and (directory / "spec.json").exists()
    recovery: Json = {
        "fault": {"id": "kill", "kind": "process_kill"},
        "target": {"rank": 1, "worker": "w1"},
        "blamed": {"rank": 1, "worker": "w1", "cause": "exit"},
        "recovery_s": 0.6,
        "downtime_s": 0.5,
        "phases": dict.fromkeys(("detect", "quiesce", "replace", "reconstruct", "restore", "recompute"), 0.1),
        "lost_steps": 1,
        "generation": 1,
        "resume_step": 3,
        "replacement": None,
        "checks": {"fired": "PASS"},
    }
    Script(directory).result("PASS", recoveries=[recovery])
    assert (await state(api, run["id"]))["state"] == "RUNNING", "the process still lives"
    end(directory)
    ended = await state(api, run["id"])
    assert (ended["state"], ended["verdict"], ended["error"]) == ("FINISHED", "PASS", None)
    trial = await api.get(f"/trials/{ended['trials'][0]}")
    assert trial["checks"]["twin"] == {"verdict": "PASS", "detail": "said by the test"}
    assert trial["recoveries"] == [recovery] and trial["state"] == "FINISHED"


async def test_a_trial_without_result_is_abandoned_and_says_why(settings: Settings) -> None:
    dying = replace(settings, trial_command=(sys.executable, "-c", "import sys; sys.exit('no more memory')"))
    async with harness(dying) as api:
        run, directory = await api.started(faults=[{"kind": "process_kill", "target": {"rank": 0}}])
        wait_until(lambda: not lifeline.lives(directory), "the end of the trial's process")
        ended = await state(api, run["id"])
        assert (ended["state"], ended["verdict"]) == ("ABANDONED", "UNKNOWN") and "no more memory" in ended["error"]
        (fault,) = (await api.get(f"/runs/{run['id']}/faults"))["items"]
        assert fault["state"] == "MISSED" and fault["detail"]


async def test_a_trial_that_cannot_be_started_says_why(settings: Settings) -> None:
    async with harness(replace(settings, trial_command=("/no/such/program",))) as api:
        run, _ = await api.started()
        assert run["state"] == "ABANDONED" and "/no/such/program" in run["error"]


async def test_runs_take_turns(api: Harness) -> None:
    first, directory = await api.started()
    second = await api.submit()
    assert (await state(api, second["id"]))["state"] == "QUEUED"
    Script(directory).result()
    end(directory)
    assert (await state(api, first["id"]))["state"] == "FINISHED"
    assert (await state(api, second["id"]))["state"] == "RUNNING"


async def test_a_queued_run_is_cancelled_at_once(api: Harness) -> None:
    run = await api.submit(faults=[{"kind": "process_kill", "target": {"rank": 0}}])
    answer = await api.post(f"/runs/{run['id']}/cancel", {"reason": "a mistake"})
    assert answer.status_code == 202 and answer.json()["state"] == "CANCELLED" and "a mistake" in answer.json()["error"]
    again = await api.post(f"/runs/{run['id']}/cancel", {"reason": ""})
    assert again.status_code == 409
    assert (await state(api, run["id"]))["state"] == "CANCELLED"


async def test_a_running_run_is_asked_to_end(api: Harness) -> None:
    run, directory = await api.started()
    await api.post(f"/runs/{run['id']}/cancel", {"reason": "enough"})
    assert '{"cancel":true,"reason":"enough"}' in (directory / "requests.jsonl").read_text()
    answer = await api.post(f"/runs/{run['id']}/faults", {"kind": "process_kill", "target": {"rank": 0}})
    assert answer.status_code == 409
    Script(directory).result("UNKNOWN", error="cancelled: enough")
    end(directory)
    ended = await state(api, run["id"])
    assert (ended["state"], ended["verdict"], ended["error"]) == ("CANCELLED", "UNKNOWN", "cancelled: enough")


async def test_a_cancel_that_came_too_late_changes_nothing(api: Harness) -> None:
    run, directory = await api.started()
    await api.post(f"/runs/{run['id']}/cancel", {"reason": "enough"})
    Script(directory).result("PASS")
    end(directory)
    assert (await state(api, run["id"]))["state"] == "FINISHED"


async def test_a_deaf_trial_is_ended_after_the_grace(settings: Settings) -> None:
    """It writes its pid file, ignores the request and SIGTERM, and is killed."""
    deaf = (
        "import json, os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "ticks = int(open('/proc/self/stat').read().rpartition(')')[2].split()[19])\n"
        "pid = pathlib.Path(sys.argv[1], 'pid')\n"
        "pid.with_suffix('.tmp').write_text(json.dumps({'pid': os.getpid(), 'start_ticks': ticks}))\n"
        "pid.with_suffix('.tmp').rename(pid)\n"
        "time.sleep(60)\n"
    )
    async with harness(replace(settings, trial_command=(sys.executable, "-c", deaf), cancel_grace_s=0.05)) as api:
        run, directory = await api.started()
        wait_until((directory / "pid").exists, "the trial's pid file")
        await api.post(f"/runs/{run['id']}/cancel", {"reason": "enough"})

        def ended() -> bool:
            api.tick()
            return not lifeline.lives(directory)

        wait_until(ended, "the end of the trial's process")
        assert (await state(api, run["id"]))["state"] == "CANCELLED"


async def test_a_new_service_finds_a_living_trial(settings: Settings) -> None:
    async with harness(settings) as first:
        run, directory = await first.started()
        wait_until((directory / "begun").exists, "the trial's process")
    assert lifeline.lives(directory), "a run outlives the service"
    async with harness(settings) as second:
        assert (await state(second, run["id"]))["state"] == "RUNNING"
        Script(directory).result("FAIL")
        end(directory)
        ended = await state(second, run["id"])
        assert (ended["state"], ended["verdict"]) == ("FINISHED", "FAIL")


async def test_a_trial_that_was_promised_but_not_started_is_started_once(settings: Settings) -> None:
    """The service dies between its promise (the row) and the process."""
    async with harness(settings) as first:
        run = await first.submit()
        spawn = first.service.executor._spawn
        first.service.executor._spawn = lambda trial: None  # type: ignore[method-assign]
        first.tick()
        first.service.executor._spawn = spawn  # type: ignore[method-assign]
    async with harness(settings) as second:
        started = await state(second, run["id"])
        directory = settings.trials / started["trials"][0]
        wait_until((directory / "begun").exists, "the trial's process")
        assert (await state(second, run["id"]))["trials"] == started["trials"]
        end(directory)


async def test_a_trial_started_in_the_last_moment_is_not_started_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service dies between starting the process and noting it."""
    count = "import pathlib, sys; pathlib.Path(sys.argv[1], 'starts').open('a').write('x')\n"
    counting = replace(settings, trial_command=(sys.executable, "-c", count + settings.trial_command[2]))
    async with harness(counting) as first:
        run = await first.submit()
        with monkeypatch.context() as patch:
            patch.setattr(first.service.executor._hub, "notify", lambda run: None)
            patch.setattr(first.service.executor, "_mark_spawned", lambda trial: None)
            first.tick()
        directory = settings.trials / (await first.get(f"/runs/{run['id']}"))["trials"][0]
        wait_until((directory / "begun").exists, "the trial's process")
    async with harness(counting) as second:
        assert (await state(second, run["id"]))["state"] == "RUNNING"
        assert (await state(second, run["id"]))["state"] == "RUNNING"
        assert (directory / "starts").read_text() == "x"
        end(directory)


async def test_an_undelivered_fault_is_delivered_by_the_next_service_once(settings: Settings) -> None:
    async with harness(settings) as first:
        run, directory = await first.started()
        first.service.executor.deliver = lambda run=None: None  # type: ignore[method-assign]
        body = {"kind": "process_kill", "target": {"rank": 0}}
        fault = (await first.post(f"/runs/{run['id']}/faults", body)).json()
        assert not (directory / "requests.jsonl").exists()
    async with harness(settings) as second:
        second.tick()
        second.tick()
        (line,) = (directory / "requests.jsonl").read_text().splitlines()
        assert fault["id"] in line
        end(directory)


def test_signals_reach_only_the_process_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(f'{{"pid": {os.getpid()}, "start_ticks": 1}}')
    assert lifeline.send(tmp_path, signal.SIGTERM) is False
