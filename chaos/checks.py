"""The checks of a trial: pure functions from what was recorded to a verdict. What is missing is UNKNOWN, never PASS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.faults import PlannedFault
from chaos.leaks import LeakReport
from chaos.recoveries import FaultOutcome, outcomes, phase_hit
from chaos.scenario import Scenario
from chaos.verdict import CheckResult, Verdict
from phoenix_core.events import Event
from phoenix_core.timeline import Phase, Recovery, recoveries

# A process that got SIGKILL may still finish a system call; an event this long after the receipt is from a living one.
STILL_ALIVE_NS: Final = 1_000_000_000
# What the runtime itself adds to a `step_committed`; all else is what the training script recorded.
NOT_RECORDED: Final = ("duration_ns", "restored")


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """What one launch left to judge: its events, and whether the job said it completed (`error`: why not)."""

    events: Sequence[Event]
    completed: bool
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the checks may look at. `asked`: every fault that was planned or requested live."""

    scenario: Scenario
    asked: Sequence[PlannedFault]
    run: PartRecord
    twin: PartRecord | None = None
    leaks: LeakReport | None = None
    outcomes: tuple[FaultOutcome, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcomes", tuple(outcomes(self.run.events)))


def run_checks(evidence: Evidence) -> dict[str, CheckResult]:
    """The checks that the scenario asks for. A check that crashes has judged nothing."""
    results: dict[str, CheckResult] = {}
    for name in evidence.scenario.checks:
        try:
            results[name] = CHECK_FUNCTIONS[name](evidence)
        except Exception as error:
            results[name] = _unknown(f"the check itself failed: {type(error).__name__}: {error}")
    return results


# --- fired -----------------------------------------------------------------------------------------------------------


def fired(evidence: Evidence) -> CheckResult:
    """Every fault has a receipt, and nothing that was recorded contradicts it."""
    receipts = {str(e.data.get("fault")): e for e in evidence.run.events if e.kind == "fault_injected"}
    missed = {str(e.data.get("fault")): e for e in evidence.run.events if e.kind == "fault_missed"}
    for receipt in receipts.values():
        if (sign := _sign_of_life_after(receipt, evidence.run.events)) is not None:
            late_s = (sign.at - receipt.at) / 1e9
            fault, kind = receipt.data.get("fault"), receipt.data.get("kind")
            claim = f"the receipt says {kind} of {receipt.worker}"
            return _fail(f"{fault}: {claim}, but it reported {sign.kind} {late_s:.1f} s later")
    for fault_id, event in missed.items():
        return _unknown(f"{fault_id} was missed: {event.data.get('reason', 'no reason recorded')}")
    for fault in evidence.asked:
        if fault.id not in receipts:
            return _unknown(f"{fault.id} was asked for, but there is neither a receipt nor a reason why not")
    if not receipts:
        return _pass("no fault was asked for")
    for receipt in receipts.values():
        if late := _other_phase(receipt, evidence.run.events):
            return _unknown(late)
    return _pass(f"{_count(len(receipts), 'fault')} injected, as the receipts say")


def _other_phase(receipt: Event, events: Sequence[Event]) -> str:
    """What the fault hit in place of the phase it was meant for: on a busy machine a short one can be over too soon."""
    trigger, hit = receipt.data.get("trigger"), phase_hit(receipt, events)
    if hit is None or not isinstance(trigger, Mapping) or "phase" not in trigger:
        return ""
    if hit["phase"] == trigger["phase"] and trigger.get("step") in (None, hit["step"]):
        return ""
    meant = f"{trigger['phase']} of step {trigger['step']}" if "step" in trigger else str(trigger["phase"])
    where = f"{hit['phase']} of step {hit['step']}"
    return f"{receipt.data.get('fault')} was meant for {meant}, but hit {receipt.worker} in {where}: it came too late"


def _sign_of_life_after(receipt: Event, events: Sequence[Event]) -> Event | None:
    until = next(
        (e.at for e in events if e.kind == "fault_reverted" and e.data.get("fault") == receipt.data.get("fault")), None
    )
    told_by_itself = ("phase_entered", "step_committed", "worker_quiesced", "communicator_ready", "state_restored")
    for event in events:
        if event.worker == receipt.worker and event.kind in told_by_itself and event.at > receipt.at + STILL_ALIVE_NS:
            return event if until is None or event.at < until else None
    return None


# --- recovered -------------------------------------------------------------------------------------------------------


def recovered(evidence: Evidence) -> CheckResult:
    """Every injected fault led to a whole recovery, and the job did all of its steps."""
    injected = sum(outcome.fault is not None for outcome in evidence.outcomes)
    if not injected and (evidence.asked or not evidence.run.completed):
        # A job that never started, or broke by itself, says nothing about recovery from faults.
        return _unknown(
            f"the job did not complete: {_why(evidence)}" if evidence.run.error else "no fault was injected"
        )
    judged = [judge_recovery(outcome, evidence) for outcome in evidence.outcomes]
    for wanted in (Verdict.FAIL, Verdict.UNKNOWN):
        for result in judged:
            if result.verdict is wanted:
                return result
    if not evidence.run.completed:
        return _fail(f"every fault was recovered from, but the job did not complete: {_why(evidence)}")
    steps = evidence.scenario.steps
    committed = steps_committed(evidence.run.events, evidence.scenario.cluster.world_size)
    if committed != steps:
        return _fail(f"the job says it completed, but all ranks committed only {committed} of {steps} steps")
    strangers = [outcome for outcome in evidence.outcomes if outcome.fault is None]
    note = f"; {len(strangers)} more without a fault of ours" if strangers else ""
    return _pass(f"{_count(injected, 'recovery', 'recoveries')} of {injected} whole{note}")


def judge_recovery(outcome: FaultOutcome, evidence: Evidence) -> CheckResult:
    """One fault (or one recovery that no fault explains) by itself."""
    fault, name = outcome.fault, str(outcome.fault.data.get("fault")) if outcome.fault else "a failure without a fault"
    if outcome.recovery is not None:
        final = _finally(outcome.recovery, evidence.run.events)
        if final.complete:
            return _pass(f"{name}: recovered in {final.recovery_s:.3f} s")
        if evidence.run.completed or not any(other.fault for other in evidence.outcomes):
            return _unknown(f"{name}: the record of the recovery is not whole ({_open_phase(final)})")
        return _fail(f"{name}: the recovery did not end ({_open_phase(final)}): {_why(evidence)}")
    assert fault is not None
    if fault.rank is None:
        return _judge_spare(outcome, name, evidence)
    if evidence.run.completed and _resumed_unnoticed(outcome, evidence.run.events):
        return _pass(f"{name}: was taken back before it was taken for a failure; the job went on")
    if evidence.run.completed and _had_finished(fault, evidence):
        return _unknown(f"{name}: hit rank {fault.rank} after its last step; there was nothing left to recover")
    return _fail(f"{name}: nobody noticed that rank {fault.rank} ({fault.worker}) was hit")


def _judge_spare(outcome: FaultOutcome, name: str, evidence: Evidence) -> CheckResult:
    """A spare holds no state: all there is to do is to notice, and to go on."""
    assert outcome.fault is not None
    exited = any(e.kind == "worker_exited" and e.worker == outcome.fault.worker for e in evidence.run.events)
    if not evidence.run.completed:
        return _fail(f"{name}: hit a spare, and the job did not complete: {_why(evidence)}")
    if outcome.detected is not None or exited:
        return _pass(f"{name}: the loss of spare {outcome.fault.worker} was noticed; no rank was touched")
    return _unknown(f"{name}: the job ended before anyone noticed the loss of spare {outcome.fault.worker}")


def _finally(recovery: Recovery, events: Sequence[Event]) -> Recovery:
    """The recovery itself, or the one that finished its work after a further failure superseded it."""
    for later in recoveries(events):
        if later.generation > recovery.generation and recovery.superseded:
            recovery = later
    return recovery


def _open_phase(recovery: Recovery) -> str:
    missing = next((phase for phase in Phase if phase not in recovery.ends), Phase.RECOMPUTE)
    return f"{missing.value} has no end"


def _resumed_unnoticed(outcome: FaultOutcome, events: Sequence[Event]) -> bool:
    assert outcome.fault is not None
    return outcome.detected is None and any(
        event.kind == "fault_reverted"
        and event.data.get("fault") == outcome.fault.data.get("fault")
        and event.data.get("alive") is True
        for event in events
    )


def _had_finished(fault: Event, evidence: Evidence) -> bool:
    last = evidence.scenario.steps - 1
    return any(
        e.kind == "step_committed" and e.rank == fault.rank and e.step == last and e.at <= fault.at
        for e in evidence.run.events
    )


# --- twin ------------------------------------------------------------------------------------------------------------


def twin(evidence: Evidence) -> CheckResult:
    """Every value recorded by any rank at any step, and the final digests, equal the undisturbed run's in every bit."""
    if evidence.twin is None:
        return _unknown("there is no undisturbed run to compare with")
    for part, title in ((evidence.run, "the run"), (evidence.twin, "the undisturbed run")):
        if not part.completed:
            return _unknown(f"{title} did not complete, so there is nothing to compare")
    ours, theirs = recorded_values(evidence.run.events), recorded_values(evidence.twin.events)
    for values, title in ((ours, "the run"), (theirs, "the undisturbed run")):
        if values.conflict:
            return _fail(f"{title} computed a step twice with different results: {values.conflict}")
    digests, reference = final_digests(evidence.run.events), final_digests(evidence.twin.events)
    difference = _value_difference(ours.values, theirs.values) or _digest_difference(digests, reference)
    if difference:
        return _fail(difference)
    size = evidence.scenario.cluster.world_size
    for part, values, found, title in (
        (evidence.run, ours, digests, "the run"),
        (evidence.twin, theirs, reference, "the undisturbed run"),
    ):
        if missing := _unrecorded(values, part.events, size, evidence.scenario.steps):
            step, rank = min(missing)
            return _unknown(f"{title} recorded nothing for rank {rank} at step {step} (and {len(missing) - 1} more)")
        if len(found) < size:
            return _unknown(f"{title} has final digests of {len(found)} ranks only")
    return _pass(f"{len(ours.values)} recorded values and {len(digests)} final digests equal in every bit")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Exact texts of recorded values by (rank, step, name); `conflict` describes two commits that disagree."""

    values: Mapping[tuple[int, int, str], str]
    conflict: str = ""


def recorded_values(events: Sequence[Event]) -> Recorded:
    """What the script recorded with each step. Of a step that a rank committed twice the last commit counts."""
    values: dict[tuple[int, int, str], str] = {}
    conflict = ""
    for event in events:
        if event.kind != "step_committed" or event.rank is None or event.step is None:
            continue
        for name, value in event.data.items():
            if name in NOT_RECORDED:
                continue
            # repr is exact for floats (it tells -0.0 from 0.0) and, unlike ==, calls NaN equal to itself.
            key, text = (event.rank, event.step, name), repr(value)
            if not conflict and values.get(key, text) != text:
                conflict = f"{name} of rank {event.rank} at step {event.step}: {values[key]} and then {text}"
            values[key] = text
    return Recorded(values=values, conflict=conflict)


def final_digests(events: Sequence[Event]) -> dict[int, str]:
    """The last digest of each rank."""
    return {e.rank: str(e.data.get("digest")) for e in events if e.kind == "state_digest" and e.rank is not None}


def _unrecorded(values: Recorded, events: Sequence[Event], size: int, steps: int) -> list[tuple[int, int]]:
    """(step, rank) without any value that should have one.

    A rank that fell out of a step which others had committed is given their state: it never reports that step itself.
    So the last step before a resumption needs a value of one rank only; what the others missed shows in the digests.
    """
    recorded = {(step, rank) for rank, step, _ in values.values}
    handed_over = {step - 1 for step in _resumed_at(events)}
    told = {step for step, _ in recorded}
    expected = ((step, rank) for step in range(steps) for rank in range(size))
    return [key for key in expected if key not in recorded and not (key[0] in handed_over and key[0] in told)]


def _value_difference(ours: Mapping[tuple[int, int, str], str], theirs: Mapping[tuple[int, int, str], str]) -> str:
    differing = [key for key in sorted(ours) if theirs.get(key, ours[key]) != ours[key]]
    if not differing:
        return ""
    rank, step, name = min(differing, key=lambda key: (key[1], key[0]))
    found, wanted = ours[rank, step, name], theirs[rank, step, name]
    more = f" ({len(differing)} values differ)" if len(differing) > 1 else ""
    return f"{name} of rank {rank} at step {step} is {found}, undisturbed {wanted}{more}"


def _digest_difference(ours: Mapping[int, str], theirs: Mapping[int, str]) -> str:
    for rank, digest in sorted(ours.items()):
        if theirs.get(rank, digest) != digest:
            return f"the final digest of rank {rank} is {digest[:12]}, undisturbed {theirs[rank][:12]}"
    return ""


# --- agreement, leaks ------------------------------------------------------------------------------------------------


def agreement(evidence: Evidence) -> CheckResult:
    """All ranks end with the same protected state, where they are replicas of each other."""
    digests, size = final_digests(evidence.run.events), evidence.scenario.cluster.world_size
    if any(event.kind == "state_digest" and event.data.get("sharded") for event in evidence.run.events):
        return _pass("the state is sharded: no rank is a replica of another, the twin check compares each part")
    groups: dict[str, list[int]] = {}
    for rank, digest in sorted(digests.items()):
        groups.setdefault(digest, []).append(rank)
    if len(groups) > 1:
        sides = " against ".join(f"{ranks} ({digest[:12]})" for digest, ranks in groups.items())
        return _fail(f"the final states of the ranks differ: {sides}")
    if len(digests) < size:
        return _unknown(f"only {len(digests)} of {size} ranks reported a final digest")
    return _pass(f"the final digest of all {size} ranks is {next(iter(groups))[:12]}")


def no_leak(evidence: Evidence) -> CheckResult:
    """Nothing that the trial started or made is left on the machine."""
    if evidence.leaks is None:
        return _unknown("nobody looked for what was left")
    if left := evidence.leaks.everything:
        return _fail(f"left behind: {', '.join(left)}")
    return _pass("no process, shared memory or socket is left")


CHECK_FUNCTIONS: Final[Mapping[str, Callable[[Evidence], CheckResult]]] = {
    "fired": fired,
    "recovered": recovered,
    "twin": twin,
    "agreement": agreement,
    "no_leak": no_leak,
}


def steps_committed(events: Sequence[Event], world_size: int) -> int:
    """How many steps every rank has in its state: committed by itself, or restored from one that had."""
    highest: dict[int, int] = {}
    for event in events:
        if event.kind == "step_committed" and event.rank is not None and event.step is not None:
            highest[event.rank] = max(event.step + 1, highest.get(event.rank, 0))
    committed = min(highest.values()) if len(highest) == world_size else 0
    return max({committed, *_resumed_at(events)})


def _resumed_at(events: Sequence[Event]) -> set[int]:
    """Every step at which a generation took up the work: all ranks then had the steps before it."""
    return {event.step for event in events if event.kind == "generation_resumed" and event.step is not None}


def _why(evidence: Evidence) -> str:
    return evidence.run.error.partition("\n")[0] or "no reason recorded"


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def _pass(detail: str) -> CheckResult:
    return CheckResult(verdict=Verdict.PASS, detail=detail)


def _fail(detail: str) -> CheckResult:
    return CheckResult(verdict=Verdict.FAIL, detail=detail)


def _unknown(detail: str) -> CheckResult:
    return CheckResult(verdict=Verdict.UNKNOWN, detail=detail)
