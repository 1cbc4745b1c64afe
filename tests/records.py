"""Records of a small trial, written by hand: what the checks are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.evidence import Evidence, PartRecord
from chaos.leaks import LeakReport
from chaos.scenario import Cluster, Scenario
from phoenix_core.events import Event

MS = 1_000_000
STEPS = 4
Events = list[Event]


def event(name: str, at_ms: float, /, **fields: Any) -> Event:
    named = {field: fields.pop(field) for field in ("worker", "rank", "generation", "step", "node") if field in fields}
    return Event(kind=name, at=round(at_ms * MS), **named, data=fields)


def loss(rank: int, step: int) -> float:
    return 1.0 / (1 + rank + 10 * step)


def step_of(worker: str, rank: int, generation: int, step: int, at_ms: float) -> Events:
    who: dict[str, Any] = {"worker": worker, "rank": rank, "generation": generation, "step": step}
    return [
        event("phase_entered", at_ms, **who, phase="forward"),
        event("step_committed", at_ms + 5, **who, duration_ns=5 * MS, loss=loss(rank, step), data=step),
    ]


def undisturbed() -> Events:
    events = [event("world_formed", 0, generation=0, ranks=["w0", "w1"], spares=[])]
    for rank in (0, 1):
        for step in range(STEPS):
            events += step_of(f"w{rank}", rank, 0, step, 10 + 10 * step)
        events.append(event("state_digest", 100, worker=f"w{rank}", rank=rank, generation=0, digest="d" * 64))
    return events


def disturbed() -> Events:
    """Rank 1 is killed in step 2, which rank 0 commits all the same; w2 takes its place and goes on with step 3."""
    events = [event("world_formed", 0, generation=0, ranks=["w0", "w1"], spares=["w2"])]
    for step in range(2):
        events += step_of("w0", 0, 0, step, 10 + 10 * step) + step_of("w1", 1, 0, step, 10 + 10 * step)
    events += step_of("w0", 0, 0, 2, 30)
    receipt = {"fault": "f", "kind": "process_kill", "pid": 7, "fidelity": "real", "trigger": {"at_step": 2}}
    events += [
        event("fault_injected", 31, worker="w1", rank=1, **receipt),
        event("worker_exited", 32, worker="w1", pid=7, code=-9),
        event("failure_detected", 33, worker="w1", rank=1, generation=1, cause="exit", detail=""),
        event("spare_assigned", 33, worker="w2", rank=1, generation=1),
        event("world_formed", 34, generation=1, ranks=["w0", "w2"], spares=[], joining=[1]),
        event("worker_quiesced", 36, worker="w0", rank=0, generation=1, boundary=3),
        event("model_built", 40, worker="w2", rank=1, generation=1),
        event("communicator_ready", 41, worker="w0", rank=0, generation=1),
        event("communicator_ready", 42, worker="w2", rank=1, generation=1),
        event("state_restored", 45, worker="w2", rank=1, generation=1, boundary=3),
        event("generation_resumed", 46, generation=1, step=3),
    ]
    events += step_of("w0", 0, 1, 3, 50) + step_of("w2", 1, 1, 3, 50)
    for rank, worker in enumerate(("w0", "w2")):
        events.append(event("state_digest", 100, worker=worker, rank=rank, generation=1, digest="d" * 64))
    return events


def scenario(**changes: Any) -> Scenario:
    faults = [{"id": "f", "kind": "process_kill", "target": {"rank": 1}, "trigger": {"at_step": 2}}]
    document = {"name": "x", "workload": "gpt-tiny", "steps": STEPS, "faults": faults, **changes}
    return replace(Scenario.from_json(document), cluster=Cluster(nodes=2, ranks_per_node=1, spares=1))


def evidence(events: Events | None = None, **changes: Any) -> Evidence:
    plan = changes.pop("scenario", scenario())
    values: dict[str, Any] = {
        "scenario": plan,
        "asked": plan.faults,
        "run": PartRecord(events=disturbed() if events is None else events, completed=True),
        "twin": PartRecord(events=undisturbed(), completed=True),
        "leaks": LeakReport(),
        **changes,
    }
    return Evidence(**values)


def without(events: Events, unwanted: Callable[[Event], bool]) -> Events:
    return [one for one in events if not unwanted(one)]


def changed(events: Events, which: Callable[[Event], bool], **data: Any) -> Events:
    """The first event that fits, with other data."""
    index = next(index for index, one in enumerate(events) if which(one))
    altered = replace(events[index], data={**events[index].data, **data})
    return [*events[:index], altered, *events[index + 1 :]]


def is_commit(rank: int, step: int) -> Callable[[Event], bool]:
    return lambda one: one.kind == "step_committed" and (one.rank, one.step) == (rank, step)


def kind(name: str) -> Callable[[Event], bool]:
    return lambda one: one.kind == name
