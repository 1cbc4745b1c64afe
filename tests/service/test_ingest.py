"""From trial directories to the database: each event once, whatever is read when."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from chaos.scenario import CHECKS
from service import lifeline
from service.settings import Settings
from tests.service.helpers import Harness, Json, Script, harness
from tests.support import wait_until

pytestmark = pytest.mark.both_databases


async def everything(api: Harness, run: str) -> list[Json]:
    items: list[Json] = (await api.get(f"/runs/{run}/events", limit=5000))["items"]
    return items


async def test_events_become_steps_workers_and_state(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    for step in range(3):
        script.step(step)
    api.tick()

    state = await api.get(f"/runs/{run['id']}")
    assert (state["state"], state["part"], state["step"]) == ("RUNNING", "run", 2)
    steps = (await api.get(f"/runs/{run['id']}/steps"))["items"]
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert steps[0]["loss"] == 2.5 and steps[0]["duration_s"] == 0.005 and steps[0]["generation"] == 0
    workers = await api.get(f"/runs/{run['id']}/workers")
    assert [(w["worker"], w["rank"], w["state"]) for w in workers["items"]] == [
        ("w0", 0, "active"),
        ("w1", 1, "active"),
        ("w2", None, "spare"),
    ]
    assert workers["generation"] == 0
    script.close()


async def test_a_step_counts_once_every_rank_has_committed_it(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0)
    script.step(1, workers=("w0",))
    api.tick()
    assert (await api.get(f"/runs/{run['id']}"))["step"] == 0
    assert len((await api.get(f"/runs/{run['id']}/steps"))["items"]) == 1
    script.emit("w1", "step_committed", worker="w1", rank=1, generation=0, step=1, duration_ns=1, loss=4.0)
    api.tick()
    assert (await api.get(f"/runs/{run['id']}"))["step"] == 1
    script.close()


async def test_a_step_of_which_a_rank_died_before_saying_so_is_not_lost(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0)
    script.step(1, workers=("w0",))  # w1 has it too, but dies before its event; the job resumes at step 2
    script.kill_rank_1("kill", step=2)
    api.tick()
    assert (await api.get(f"/runs/{run['id']}"))["step"] == 1
    script.step(2, generation=1, workers=("w0", "w2"))
    api.tick()
    steps = (await api.get(f"/runs/{run['id']}/steps"))["items"]
    assert [(step["step"], step["loss"]) for step in steps] == [(0, 2.5), (1, 2.0), (2, 2.5)]
    script.close()


async def test_recovery_is_seen_while_the_run_goes_on(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0)
    api.tick()
    fault = (await api.post(f"/runs/{run['id']}/faults", {"kind": "process_kill", "target": {"rank": 1}})).json()
    script.kill_rank_1(fault["id"], step=1)
    api.tick()
    seen = (await api.get(f"/runs/{run['id']}/faults"))["items"][0]
    assert seen["state"] == "INJECTED" and seen["injected"] == {
        "worker": "w1",
        "rank": 1,
        "pid": 4_000_001,
        "fidelity": "real",
    }
    assert seen["recovery"]["recovery_s"] is None and seen["recovery"]["blamed"]["cause"] == "exit"

    script.step(1, generation=1, workers=("w0", "w2"))
    api.tick()
    recovery = (await api.get(f"/runs/{run['id']}/faults"))["items"][0]["recovery"]
    assert recovery["recovery_s"] == pytest.approx(sum(recovery["phases"].values()))
    assert recovery["phases"]["detect"] == pytest.approx(0.002) and recovery["lost_steps"] == 1
    assert recovery["checks"] == dict.fromkeys(CHECKS, "UNKNOWN")
    # The step that was executed again takes the place of the first execution.
    assert (await api.get(f"/runs/{run['id']}/steps"))["items"][1]["generation"] == 1
    script.close()


async def test_timeline_tiles_the_recovery_and_has_a_row_per_rank(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.kill_rank_1("kill", step=0)
    script.step(0, generation=1, workers=("w0", "w2"))
    api.tick()
    trial = (await api.get(f"/runs/{run['id']}"))["trials"][0]
    (recovery,) = (await api.get(f"/trials/{trial}/timeline"))["recoveries"]
    phases = [bar for bar in recovery["bars"] if bar["row"] == "coordinator"]
    assert [bar["label"] for bar in phases] == ["detect", "quiesce", "replace", "reconstruct", "restore", "recompute"]
    for one, next_one in pairwise(phases):
        assert one["end_s"] == next_one["start_s"]
    assert (phases[0]["start_s"], phases[-1]["end_s"]) == (recovery["started_s"], recovery["ended_s"])
    assert [bar["label"] for bar in recovery["bars"] if bar["row"] == "rank 0"] == [
        "quiesce",
        "reconstruct",
        "recompute",
    ]
    assert [bar["label"] for bar in recovery["bars"] if bar["row"] == "rank 1"] == [
        "replace",
        "reconstruct",
        "restore",
        "recompute",
    ]
    assert [instant["label"] for instant in recovery["instants"]] == [
        "fault_injected",
        "failure_detected",
        "spare_assigned",
        "generation_resumed",
    ]
    script.close()


async def test_recoveries_are_counted_and_a_lost_spare_is_none(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0)
    script.emit(
        "injector", "fault_injected", worker="w2", node="n2", fault="f", kind="process_kill", pid=4_000_002,
        fidelity="real", trigger={"now": True},
    )  # fmt: skip
    script.emit("agent", "worker_exited", worker="w2", node="n2", pid=4_000_002, code=-9)
    script.emit("coordinator", "failure_detected", worker="w2", generation=0, cause="exit")
    api.tick()
    trial = (await api.get(f"/runs/{run['id']}"))["trials"][0]
    (lost,) = (await api.get(f"/trials/{trial}"))["recoveries"]
    assert (lost["target"], lost["generation"], lost["replacement"]) == ({"rank": None, "worker": "w2"}, None, None)
    script.spawn(3)
    script.emit("w3", "spare_parked", worker="w3", node="n3", after_ms=2000)
    api.tick()
    (replaced,) = (await api.get(f"/trials/{trial}/timeline"))["recoveries"]
    assert replaced["replacement"]["worker"] == "w3" and replaced["replacement"]["after_s"] > 2.0
    assert replaced["recovery_s"] is None and set(replaced["phases"].values()) == {None}
    assert (await api.get(f"/runs/{run['id']}"))["recoveries"] == 0
    script.kill_rank_1("g", step=1)
    api.tick()
    assert (await api.get(f"/runs/{run['id']}"))["recoveries"] == 1
    assert [item["recoveries"] for item in (await api.get("/runs"))["items"]] == [1]
    script.close()


async def test_what_a_target_did_is_known_while_the_fault_lasts(api: Harness) -> None:
    """Also of a network fault, after which its target goes on and is blamed by nobody."""
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    for step in range(8):
        script.step(step)
    script.emit(
        "injector", "fault_injected", worker="w1", node="n1", rank=1, fault="cut", kind="network_partition", pid=1,
        fidelity="real", trigger={"now": True},
    )  # fmt: skip
    for step in range(8, 10):
        script.step(step)
    api.tick()
    trial = (await api.get(f"/runs/{run['id']}"))["trials"][0]
    (recovery,) = (await api.get(f"/trials/{trial}"))["recoveries"]
    assert recovery["fault"]["hit"] == {"phase": "forward", "step": 7}
    script.close()


async def test_torn_lines_wait_and_foreign_lines_are_passed_over(api: Harness) -> None:
    run, directory = await api.started()
    events = directory / "run" / "events"
    events.mkdir(parents=True)
    whole = '{"kind":"spare_parked","at":5,"worker":"w9"}\n'
    with (events / "w9.jsonl").open("w") as file:
        file.write("not an event\n" + whole + whole[:20])
        file.flush()
        api.tick()
        assert len(await everything(api, run["id"])) == 1
        file.write(whole[20:])
        file.flush()
        api.tick()
    assert len(await everything(api, run["id"])) == 2


async def test_a_new_service_goes_on_where_the_rows_end(settings: Settings) -> None:
    async with harness(settings) as first:
        run, directory = await first.started()
        script = Script(directory)
        script.begin()
        script.step(0)
        first.tick()
        before = await everything(first, run["id"])
    script.step(1)
    async with harness(settings) as second:
        second.tick()
        after = await everything(second, run["id"])
        assert after[: len(before)] == before and len(after) == len(before) + 4
        assert len({event["offset"] for event in after}) == len(after)
    script.close()


async def test_a_failed_transaction_is_repeated_whole(api: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()

    def disk_full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("service.upsert.execute", disk_full)
        with pytest.raises(OSError):
            api.tick()
    assert await everything(api, run["id"]) == []
    api.tick()
    assert len(await everything(api, run["id"])) == 7
    script.close()


async def test_twin_events_change_nothing_of_the_disturbed_part(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0)
    script.emit("injector", "trial_phase", part="twin")
    script.close()
    twin = Script(directory, "twin")
    twin.begin()
    twin.step(0, loss=9.0)
    twin.step(1, loss=9.0)
    api.tick()
    state = await api.get(f"/runs/{run['id']}")
    assert (state["part"], state["step"]) == ("twin", 0)
    assert (await api.get(f"/runs/{run['id']}/steps"))["items"][0]["loss"] == 2.5
    assert {event["part"] for event in await everything(api, run["id"])} == {"run", "twin"}
    twin.close()


async def test_losses_that_are_no_numbers_stay_readable(api: Harness) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0, loss=float("nan"))
    api.tick()
    assert (await api.get(f"/runs/{run['id']}/steps"))["items"][0]["loss"] is None
    losses = [event["data"]["loss"] for event in await everything(api, run["id"]) if event["kind"] == "step_committed"]
    assert losses == [None, None]
    script.close()


async def test_a_directory_that_vanished_ends_the_run(api: Harness, tmp_path: Path) -> None:
    run, directory = await api.started()
    (directory / "end").touch()
    wait_until(lambda: not lifeline.lives(directory), "the end of the trial's process")
    directory.rename(tmp_path / "moved")
    api.tick()
    state = await api.get(f"/runs/{run['id']}")
    assert state["state"] == "ABANDONED" and state["verdict"] == "UNKNOWN"
