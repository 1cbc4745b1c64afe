"""What events say of a recovery, the same rule for every runtime. Pure.

A peer does not speak all of PHOENIX's words, but every rank of every runtime says when it begins a step and when it has
committed one. From that alone follow the recovery time, the time until the survivors go on, and the lost steps; the
phases are as fine as the other events are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from chaos.twin import recorded_values
from phoenix_core.events import Event
from phoenix_core.timeline import Phase

ENDS: Final[Mapping[Phase, str]] = {
    Phase.QUIESCE: "worker_quiesced",
    Phase.REPLACE: "model_built",
    Phase.RECONSTRUCT: "communicator_ready",
    Phase.RESTORE: "state_restored",
}
"""The last event of this kind after the fault ends the phase."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One fault and what followed. Seconds count from the injection; None: it did not come to that, and `why`.

    `goes_on_s`: all ranks but those that were hit have committed a step that they began after the fault.
    `recovery_s`: all ranks have. Both are new steps: what was committed before the fault does not count.
    """

    kind: str
    rank: int | None
    goes_on_s: float | None
    recovery_s: float | None
    phases: Mapping[str, float | None]
    lost_steps: int | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class _Commit:
    rank: int
    step: int
    at: int
    began: int


def sample(events: Sequence[Event], fault: Event, *, kind: str, size: int, why: str = "") -> Sample:
    """The recovery so far from the last fault of these events, in a world of `size` ranks."""
    since = _complete_at(fault)
    goes_on, whole = _back(events, since, size - 1, size), _back(events, since, size, size)
    end = whole if whole is not None else goes_on
    return Sample(
        kind=kind,
        rank=fault.rank,
        goes_on_s=None if goes_on is None else (goes_on - fault.at) / 1e9,
        recovery_s=None if whole is None else (whole - fault.at) / 1e9,
        phases=_phases(events, fault, end),
        lost_steps=None if end is None else lost_steps(events, fault.at),
        why="" if whole is not None else why,
    )


def _complete_at(fault: Event) -> int:
    """The receipt of a network fault is of the instant before the first rule; steps may pass until the last is set."""
    proof = fault.data.get("proof")
    took_s = proof.get("took_s", 0.0) if isinstance(proof, Mapping) else 0.0
    return fault.at + round(float(took_s) * 1e9)


def committed_by_all(events: Iterable[Event], size: int) -> int:
    """The greatest step that every rank has committed; -1 if there is none."""
    greatest = dict.fromkeys(range(size), -1)
    for commit in _commits(events):
        if commit.rank in greatest:
            greatest[commit.rank] = max(greatest[commit.rank], commit.step)
    return min(greatest.values())


def holders(events: Iterable[Event]) -> dict[int, str]:
    """The worker that last began a step as each rank."""
    found: dict[int, str] = {}
    for event in events:
        if event.kind == "phase_entered" and event.rank is not None and event.worker is not None:
            found[event.rank] = event.worker
    return found


def lost_steps(events: Iterable[Event], at: int) -> int:
    """Steps that a rank began, and after `at` began again; the most of all ranks. The interrupted step counts."""
    highest: dict[int, int] = {}
    lost: dict[int, int] = {}
    for event in events:
        if event.kind != "phase_entered" or event.data.get("phase") != "forward":
            continue
        if event.rank is None or event.step is None:
            continue
        high = highest.get(event.rank, -1)
        if event.at > at and event.step <= high:
            lost.setdefault(event.rank, high - event.step + 1)
        highest[event.rank] = max(high, event.step)
    return max(lost.values(), default=0)


def twin_verdict(events: Sequence[Event], undisturbed: Sequence[Event], after: int) -> tuple[str, str]:
    """PASS, FAIL or UNKNOWN, and why: are the losses of the steps begun after `after` (ns) those of the twin?"""
    ours = recorded_values([event for event in events if event.kind == "step_committed" and _began(event) > after])
    twin = recorded_values(undisturbed)
    common = sorted(set(ours.values) & set(twin.values), key=lambda key: (key[1], key[0]))
    if not common:
        return "UNKNOWN", "no step after the fault is also one of the undisturbed run"
    if ours.conflict:
        return "FAIL", ours.conflict
    different = [key for key in common if ours.values[key] != twin.values[key]]
    if different:
        rank, step, name = different[0]
        apart = max(_apart(ours.values[key], twin.values[key]) for key in different)
        where = f"first {name} of rank {rank} at step {step}"
        return "FAIL", f"{len(different)} of {len(common)} values differ, by {apart:.0e} at most, {where}"
    return "PASS", f"{len(common)} values equal in every bit"


def _apart(one: str, other: str) -> float:
    """The relative difference of two recorded numbers: rounding is told from other data by it."""
    ours, twin = float(one), float(other)
    return abs(ours - twin) / max(abs(twin), 1e-300)


def _began(commit: Event) -> int:
    return commit.at - int(str(commit.data.get("duration_ns", 0)))


def _commits(events: Iterable[Event]) -> list[_Commit]:
    return [
        _Commit(rank=event.rank, step=event.step, at=event.at, began=_began(event))
        for event in events
        if event.kind == "step_committed" and event.rank is not None and event.step is not None
    ]


def _back(events: Sequence[Event], at: int, ranks: int, size: int) -> int | None:
    """When `ranks` of the `size` ranks had committed one and the same new step that they began after `at`."""
    old = committed_by_all((event for event in events if event.at <= at), size)
    steps: dict[int, dict[int, int]] = {}
    for commit in _commits(events):
        if commit.began > at and commit.step > old:
            reached = steps.setdefault(commit.step, {})
            reached[commit.rank] = min(commit.at, reached.get(commit.rank, commit.at))
    complete = [sorted(reached.values())[ranks - 1] for reached in steps.values() if len(reached) >= ranks]
    return min(complete, default=None)


def _phases(events: Sequence[Event], fault: Event, end: int | None) -> dict[str, float | None]:
    """Lengths that tile the recovery; None for a phase that no event tells of: it is part of the next one."""
    lengths: dict[str, float | None] = {phase.value: None for phase in Phase}
    if end is None:
        return lengths
    inside = [event for event in events if fault.at < event.at <= end]
    instants: dict[Phase, int | None] = {phase: _last(inside, kind) for phase, kind in ENDS.items()}
    instants[Phase.DETECT] = _detected(inside, fault)
    gone = [event.at for event in inside if event.kind == "worker_exited" and event.worker != fault.worker]
    instants[Phase.QUIESCE] = max([*gone, *filter(None, [instants[Phase.QUIESCE]])], default=None)
    instants[Phase.RECOMPUTE] = end
    previous = fault.at
    for phase in Phase:
        instant = instants[phase]
        if instant is not None:
            lengths[phase.value] = max(0, instant - previous) / 1e9
            previous = max(previous, instant)
    return lengths


def _detected(inside: Sequence[Event], fault: Event) -> int | None:
    """The first sign that somebody other than the one that was hit knows of it."""
    return min(
        (
            event.at
            for event in inside
            if event.kind == "failure_detected" or (event.kind == "worker_exited" and event.worker != fault.worker)
        ),
        default=None,
    )


def _last(events: Iterable[Event], kind: str) -> int | None:
    return max((event.at for event in events if event.kind == kind), default=None)
