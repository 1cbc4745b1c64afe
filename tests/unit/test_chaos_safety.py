"""What keeps faults from staying, spreading or hitting strangers: on fake injectors, without processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from chaos.conductor import Faults
from chaos.faults import Injection, PlannedFault
from chaos.foresight import foresee
from chaos.injectors.base import Reverted, receipt
from chaos.kinds import FAULT_KINDS
from chaos.kinds_process import PROCESS_STOP
from chaos.procfs import is_foreign, start_ticks
from chaos.requests import FaultRequest, HaltRequest, ReleaseRequest, parse_request
from chaos.roster import Roster, WorkerInfo
from chaos.scenario import Scenario
from phoenix_core.events import Event, EventWriter, read_events

PID = os.getpid()


class Held:
    """A fault that lasts and touches nothing."""

    over = ""
    ttl_s: float | None = 60.0

    def __init__(self, injection: Injection) -> None:
        self.injection = injection
        self.reverted = 0

    def revert(self) -> Reverted:
        self.reverted += 1
        return Reverted(alive=True)

    def close(self) -> None:
        """Nothing is held open."""


class Holding:
    kind = PROCESS_STOP

    def __init__(self) -> None:
        self.held: list[Held] = []

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Held:
        self.held.append(Held(receipt(fault, self.kind, worker, at=1)))
        return self.held[-1]


def stop(id: str, **changes: Any) -> dict[str, Any]:
    return {"id": id, "kind": "process_stop", "target": {"rank": 0}, "trigger": {"now": True}, **changes}


class Trial:
    """The faults of a trial whose rank 0 is this very process."""

    def __init__(self, directory: Path, *faults: dict[str, Any]) -> None:
        plan = {"name": "x", "workload": "gpt-tiny", "steps": 9, "faults": list(faults)}
        self.directory = directory
        self.injector = Holding()
        self.writer = EventWriter(directory / "injector.jsonl")
        self.faults = Faults(Scenario.from_json(plan), self.writer, {"process_stop": self.injector})
        ticks = start_ticks(PID)
        self.faults.observe(
            [
                Event(kind="worker_spawned", at=0, worker="w0", node="n0", data={"pid": PID, "start_ticks": ticks}),
                Event(kind="world_formed", at=0, generation=0, data={"ranks": ["w0"], "spares": []}),
            ]
        )

    def told(self, kind: str) -> list[tuple[str, str]]:
        events = [event for event in read_events(self.directory) if event.kind == kind]
        return [(str(event.data.get("fault")), str(event.data.get("reason"))) for event in events]

    def ask(self, id: str) -> None:
        self.faults.request(PlannedFault.from_json(stop(id)), now=5)


def test_a_halt_takes_back_what_lasts_and_lets_nothing_new_happen_until_a_release(tmp_path: Path) -> None:
    trial = Trial(tmp_path, stop("a"))
    trial.faults.halt("enough")
    assert [held.reverted for held in trial.injector.held] == [1]
    assert trial.told("fault_reverted") == [("a", "halted: enough")]
    trial.ask("b")
    trial.faults.halt("still")
    trial.ask("c")
    assert trial.told("fault_missed") == [("b", "halted: enough"), ("c", "halted: still")]
    assert len(trial.injector.held) == 1
    trial.faults.release()
    trial.ask("d")
    assert [held.injection.fault for held in trial.injector.held] == ["a", "d"]


def test_a_request_that_this_cluster_cannot_do_is_refused_and_ends_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    for number, (kind, why) in enumerate([("network_partition", "cluster.isolation"), ("gpu_xid", "cluster.gpus")]):
        asked = {"fault": f"f{number}", "kind": kind, "target": {"rank": 0}, "params": {"xid": 79} if number else {}}
        request = parse_request(json.dumps(asked).encode())
        assert isinstance(request, FaultRequest)
        trial.faults.request(request.fault, now=5)
        assert trial.told("fault_missed")[-1][0] == f"f{number}" and why in trial.told("fault_missed")[-1][1]
    assert trial.faults.asked == []
    assert "not JSON" in str(parse_request(b"[" * 100_000).audit["reason"])


def test_an_id_under_which_an_earlier_fault_fires_again_is_no_free_one(tmp_path: Path) -> None:
    trial = Trial(tmp_path, stop("a", trigger={"at_step": 3, "repeat": 2}))
    trial.ask("a.2")
    (missed,) = trial.told("fault_missed")
    assert missed[0] == "a.2" and "fires again" in missed[1] and not trial.injector.held
    trial.ask("a.3")
    assert [held.injection.fault for held in trial.injector.held] == ["a.3"]


def test_each_of_several_halts_has_to_be_released(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    for _ in range(2):  # whoever is not sure whether it has said so says it again
        trial.faults.halt("smoke", "h1")
    trial.faults.halt("water", "h2")
    trial.faults.release("h1")
    assert trial.faults.halted == "halted: water"
    trial.faults.release("h2")
    assert trial.faults.halted == ""
    trial.faults.halt("fire", "h3")
    trial.faults.release()
    assert trial.faults.halted == ""


def test_a_halt_withdraws_what_waits_so_that_it_does_not_happen_after_the_release(tmp_path: Path) -> None:
    trial = Trial(tmp_path, stop("later", trigger={"at_step": 3}))
    trial.faults.request(PlannedFault.from_json(stop("asked", trigger={"after_s": 300})), now=5)
    for _ in range(2):
        trial.faults.halt("enough")
    assert trial.told("fault_missed") == [("later", "halted: enough"), ("asked", "halted: enough")]
    trial.faults.release()
    trial.faults.observe([Event(kind="phase_entered", at=9, rank=0, step=3, worker="w0", data={"phase": "forward"})])
    trial.faults.tick(now=10**12)
    assert trial.injector.held == []


def test_only_descendants_of_the_launch_are_hit(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    trial.faults.keeper = PID  # nobody descends from itself
    trial.ask("a")
    trial.faults.keeper = os.getppid()
    trial.ask("b")
    assert trial.told("fault_missed") == [("a", f"the process of w0 (pid {PID}) was not started by this trial")]
    assert [held.injection.fault for held in trial.injector.held] == ["b"]


def test_descent_is_read_from_proc() -> None:
    assert not is_foreign(PID, os.getppid())
    assert is_foreign(os.getppid(), PID)
    assert not is_foreign(2**22 + 1, os.getppid())  # no process has such a number


def test_a_fault_that_would_last_for_ever_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Held, "ttl_s", None)
    with pytest.raises(AssertionError, match="process_stop would last for ever"):
        Trial(tmp_path, stop("a"))


@pytest.mark.parametrize("name", FAULT_KINDS)
def test_every_kind_that_lasts_has_a_time_to_live(name: str) -> None:
    kind = FAULT_KINDS[name]
    properties: Any = kind.params_schema["properties"]
    assert kind.lasting == ("ttl_s" in properties)
    if kind.lasting:
        assert 0 < properties["ttl_s"]["default"] <= properties["ttl_s"]["maximum"] <= 3600


def test_requests_of_a_halt_and_what_is_said_of_each(tmp_path: Path) -> None:
    halt, release = parse_request(b'{"halt": true, "reason": "smoke"}'), parse_request(b'{"release": true}')
    assert (halt, release) == (HaltRequest(reason="smoke"), ReleaseRequest(reason="no reason given"))
    asked = parse_request(b'{"fault": "a", "kind": "process_kill", "target": {"rank": 0}, "reason": "why"}')
    assert isinstance(asked, FaultRequest)
    trial = Trial(tmp_path)
    for request in (halt, release, asked, parse_request(b"{")):
        trial.faults.note(request)
    told = [event.data for event in read_events(tmp_path) if event.kind == "request_taken"]
    assert [data["request"] for data in told] == ["halt", "release", "fault", "refused"]
    assert told[0]["reason"] == "smoke" and told[2]["fault"] == "a"


def test_a_plan_of_many_is_no_live_request() -> None:
    poisson = b'{"fault": "a", "kind": "process_kill", "target": {"rank": 0}, "trigger": {"trace": [1]}}'
    assert parse_request(b'{"halt": "h7", "reason": "r"}') == HaltRequest(reason="r", halt="h7")
    assert "a request is one fault" in parse_request(poisson).audit["reason"]  # type: ignore[operator]


def test_what_would_be_hit_is_told_without_touching_it() -> None:
    members = Roster()
    for event in (
        Event(kind="worker_spawned", at=0, worker="w0", node="n0", data={"pid": 7, "start_ticks": 1}),
        Event(kind="world_formed", at=0, generation=0, data={"ranks": ["w0"], "spares": []}),
    ):
        members.observe(event)
    seen = foresee(PlannedFault.from_json(stop("a")), members)
    assert seen.text == "process_stop would hit w0 (rank 0, process 7) for at most 60 s"
    assert (seen.worker, seen.rank, seen.pid) == ("w0", 0, 7)
    kill = {"id": "b", "kind": "process_kill"}
    gone = foresee(PlannedFault.from_json({**kill, "target": {"spare": True}}), members)
    assert (gone.text, gone.pid) == ("process_kill would miss now: no spare is parked", None)
    drawn = foresee(PlannedFault.from_json({**kill, "target": {"random_rank": True}}), members)
    assert drawn.text == "process_kill would hit a rank that is drawn when it fires"
