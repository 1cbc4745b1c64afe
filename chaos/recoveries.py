"""The one shape in which a recovery is reported everywhere: command line, REST, result.json. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaos.kinds import FAULT_KINDS, Scope
from chaos.scenario import CHECKS
from chaos.verdict import Verdict
from chaos.wanted import asks_for_nothing, is_quiet
from phoenix_core.events import Event
from phoenix_core.timeline import Failure, Phase, Recovery, recoveries

SINGLE: Final = ("coordinator", "launcher")
"""What a job has one of, and which no spare can replace."""


@dataclass(frozen=True, kw_only=True)
class FaultOutcome:
    """A fault that was injected (None: nobody injected one) and the recovery it led to (None: none did, yet).

    `detected`: the detector's word on the worker that was hit; `hit`: the phase and step which that worker was in;
    `replacement`: for a spare, which needs no recovery, the parking of the new one (None: none is parked yet).
    """

    fault: Event | None
    recovery: Recovery | None
    detected: Event | None = None
    hit: Mapping[str, object] | None = None
    replacement: Event | None = None


def outcomes(events: Iterable[Event]) -> list[FaultOutcome]:
    """Each injected fault with its recovery, and each recovery that no fault of ours explains; ordered by time."""
    ordered = sorted(events, key=lambda event: event.at)
    found = recoveries(ordered)
    faults = [event for event in ordered if event.kind == "fault_injected"]
    matched = _with_replacements([_outcome(fault, found, ordered) for fault in faults], ordered)
    explained = {outcome.recovery.generation for outcome in matched if outcome.recovery}
    # A recovery that a second failure superseded is finished by the next generation: that is part of the same story.
    chained = {recovery.generation for recovery in found if _ends_a_chain(recovery, found, explained)}
    strangers = [recovery for recovery in found if recovery.generation not in explained | chained]
    matched += [FaultOutcome(fault=None, recovery=recovery) for recovery in strangers]
    return sorted((replace(outcome, recovery=_to_its_end(outcome.recovery, found)) for outcome in matched), key=_when)


def _to_its_end(recovery: Recovery | None, found: Sequence[Recovery]) -> Recovery | None:
    """With the generations after it that nobody's failure began: what it was to be restored from was damaged, and the
    recovery from the same fault began anew. All of that time is its own."""
    for following in found:
        if recovery is None or not recovery.superseded:
            break
        if following.generation > recovery.generation and following.fault is None and not following.failures:
            recovery = replace(
                following,
                started_ns=recovery.started_ns,
                fault=recovery.fault,
                failures=recovery.failures,
                ends={**following.ends, Phase.DETECT: recovery.ends[Phase.DETECT]},
            )
    return recovery


def _outcome(fault: Event, found: Sequence[Recovery], events: Sequence[Event]) -> FaultOutcome:
    own = [recovery for recovery in found if recovery.fault == fault.data.get("fault")]
    kind, hit = FAULT_KINDS.get(str(fault.data.get("kind"))), phase_hit(fault, events)
    if kind is not None and kind.quiet and not own:
        return FaultOutcome(fault=fault, recovery=None, hit=hit)  # what befalls that worker has another reason
    ended = _taken_back(fault, events)
    detected = next(
        (
            event
            for event in events
            if event.kind == "failure_detected" and event.worker == fault.worker and fault.at <= event.at <= ended
        ),
        None,
    )
    # Two faults that end the same generation share its recovery, which the timeline can give to one of them only.
    shared = [
        recovery
        for recovery in found
        if detected is not None and recovery.generation == detected.generation and fault.rank is not None
    ]
    recovery = next(iter(own + shared), None)
    return FaultOutcome(fault=fault, recovery=recovery, detected=detected, hit=hit)


def _taken_back(fault: Event, events: Sequence[Event]) -> float:
    """When its process was as before again; what happens to that worker later has another reason. Else never.

    A network or a GPU that is well again may still be taken for failed by who looks late, until something else hits.
    """
    kind, name = FAULT_KINDS.get(str(fault.data.get("kind"))), fault.data.get("fault")
    back = next(
        (
            event.at
            for event in events
            if event.kind == "fault_reverted" and event.data.get("fault") == name
            if event.data.get("alive") is True or asks_for_nothing(fault)
        ),
        math.inf,
    )
    if kind is not None and kind.scope in (Scope.PROCESS, Scope.TRAINING):
        return back
    later = (e for e in events if e.kind == "fault_injected" and e.worker == fault.worker and e.at > back)
    return next((event.at for event in later if not is_quiet(event)), math.inf)


def _with_replacements(found: Sequence[FaultOutcome], events: Sequence[Event]) -> list[FaultOutcome]:
    """Give each spare that was hit the first new spare after it, that of its own node first; no two the same one."""
    spawned = {event.worker: event.at for event in events if event.kind == "worker_spawned"}
    free = [event for event in events if event.kind == "spare_parked"]
    completed = []
    for outcome in found:
        fault = outcome.fault
        if fault is not None and fault.rank is None and fault.worker not in SINGLE:
            later = [event for event in free if spawned.get(event.worker, 0) > fault.at]
            new = min(later, key=lambda event: (event.node != fault.node, event.at), default=None)
            free = [event for event in free if event is not new]
            outcome = replace(outcome, replacement=new)
        completed.append(outcome)
    return completed


def phase_hit(fault: Event, events: Iterable[Event]) -> dict[str, object] | None:
    """What the target was doing when it was hit, by its own events: which phase of which step (None: no phase yet)."""
    return _last(event for event in events if _entered_before(fault, event))


def copy_hit(fault: Event, events: Iterable[Event]) -> dict[str, object] | None:
    """The same where a snapshot was being copied, which goes on beside the training until it is sent; else None."""
    beside = (
        e for e in events if _entered_before(fault, e) and e.data.get("phase") in ("snapshot_copy", "replica_send")
    )
    hit = _last(beside)
    return hit if hit is not None and hit["phase"] == "snapshot_copy" else None


def _entered_before(fault: Event, event: Event) -> bool:
    return event.kind == "phase_entered" and event.worker == fault.worker and event.at <= fault.at


def _last(entered: Iterable[Event]) -> dict[str, object] | None:
    last = max(entered, key=lambda event: event.at, default=None)
    return None if last is None else {"phase": last.data.get("phase"), "step": last.step}


def _ends_a_chain(recovery: Recovery, found: Sequence[Recovery], explained: set[int]) -> bool:
    earlier = [other for other in found if other.generation < recovery.generation]
    return recovery.fault is None and bool(earlier) and earlier[-1].superseded and earlier[-1].generation in explained


def _when(outcome: FaultOutcome) -> int:
    if outcome.fault is not None:
        return outcome.fault.at
    assert outcome.recovery is not None
    return outcome.recovery.started_ns


@dataclass(frozen=True, kw_only=True)
class RecoveryRecord:
    """One fault and its recovery as JSON. Seconds are None where the recovery did not get that far.

    A fault on a spare (`target.rank` None) has no recovery: all of it is None but `replacement`, the new spare.
    """

    fault: Mapping[str, object] | None
    target: Mapping[str, object]
    blamed: Mapping[str, object] | None
    recovery_s: float | None
    downtime_s: float | None
    phases: Mapping[str, float | None]
    lost_steps: int | None
    generation: int | None
    resume_step: int | None
    replacement: Mapping[str, object] | None = None
    checks: Mapping[str, Verdict] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "fault": None if self.fault is None else dict(self.fault),
            "target": dict(self.target),
            "blamed": None if self.blamed is None else dict(self.blamed),
            "recovery_s": self.recovery_s,
            "downtime_s": self.downtime_s,
            "phases": dict(self.phases),
            "lost_steps": self.lost_steps,
            "generation": self.generation,
            "resume_step": self.resume_step,
            "replacement": None if self.replacement is None else dict(self.replacement),
            "checks": {name: verdict.value for name, verdict in self.checks.items()},
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> RecoveryRecord:
        checks = data["checks"]
        assert isinstance(checks, Mapping)
        own = ("checks", "replacement")  # results of earlier versions know no replacement
        fields = {name: data[name] for name in RecoveryRecord.__dataclass_fields__ if name not in own}
        verdicts = {name: Verdict(str(verdict)) for name, verdict in checks.items()}
        return RecoveryRecord(**fields, replacement=data.get("replacement"), checks=verdicts)  # type: ignore[arg-type]


def recovery_record(outcome: FaultOutcome, checks: Mapping[str, Verdict] | None = None) -> RecoveryRecord:
    """`checks`: verdicts of the trial and of this fault by itself; None: the run goes on, and none is known yet."""
    known = dict.fromkeys(CHECKS, Verdict.UNKNOWN) if checks is None else checks
    recovery, fault = outcome.recovery, outcome.fault
    lengths = recovery.phases_s if recovery else dict.fromkeys(Phase)
    blamed = _blamed(outcome)
    target: dict[str, object] = {"rank": None, "worker": None}
    if fault is not None:
        target = {"rank": fault.rank, "worker": fault.worker}
    elif blamed is not None:
        target = {"rank": blamed["rank"], "worker": blamed["worker"]}
    return RecoveryRecord(
        fault=_fault_json(outcome),
        target=target,
        blamed=blamed,
        recovery_s=recovery.recovery_s if recovery else None,
        downtime_s=recovery.downtime_s if recovery else None,
        phases={phase.value: lengths[phase] for phase in Phase},
        lost_steps=recovery.lost_steps if recovery and recovery.resume_step is not None else None,
        generation=recovery.generation if recovery else None,
        resume_step=recovery.resume_step if recovery else None,
        replacement=_replacement(outcome),
        checks={name: known[name] for name in CHECKS if name in known},
    )


def recovery_records(events: Iterable[Event]) -> list[RecoveryRecord]:
    """All recoveries of a run so far, not judged yet."""
    return [recovery_record(outcome) for outcome in outcomes(events)]


def _fault_json(outcome: FaultOutcome) -> dict[str, object] | None:
    fault = outcome.fault
    if fault is None:
        return None
    return {
        "id": fault.data.get("fault"),
        "kind": fault.data.get("kind"),
        "trigger": fault.data.get("trigger"),
        "fidelity": fault.data.get("fidelity"),
        "hit": None if outcome.hit is None else dict(outcome.hit),
    }


def _replacement(outcome: FaultOutcome) -> dict[str, object] | None:
    """The new spare, and how many seconds after the fault it was parked."""
    if outcome.fault is None or outcome.replacement is None:
        return None
    return {"worker": outcome.replacement.worker, "after_s": (outcome.replacement.at - outcome.fault.at) / 1e9}


def _blamed(outcome: FaultOutcome) -> dict[str, object] | None:
    """Whom the detector named: of several, the one that was hit, else the first."""
    if outcome.recovery is not None and outcome.recovery.failures:
        failures: Sequence[Failure] = outcome.recovery.failures
        hit = outcome.fault.worker if outcome.fault is not None else None
        failure = next((failure for failure in failures if failure.worker == hit), failures[0])
        return {"rank": failure.rank, "worker": failure.worker, "cause": failure.cause}
    if outcome.detected is not None:
        detected = outcome.detected
        return {"rank": detected.rank, "worker": detected.worker, "cause": str(detected.data.get("cause", ""))}
    return None
