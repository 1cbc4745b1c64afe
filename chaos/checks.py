"""The checks of a trial: pure functions from what was recorded to a verdict. What is missing is UNKNOWN, never PASS."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from chaos.attribution import attribution, judge_blame
from chaos.data_once import data_once
from chaos.evidence import Evidence, steps_committed
from chaos.gpu_health import gpu_health, quarantined
from chaos.kinds import FAULT_KINDS, Scope
from chaos.kinds_process import PROCESS_OOM
from chaos.kinds_storage import DISK_FULL
from chaos.recoveries import SINGLE, FaultOutcome, copy_hit, phase_hit
from chaos.twin import final_digests, twin
from chaos.underway import Underway
from chaos.verdict import CheckResult, Verdict, count, failed, passed, unknown
from chaos.wanted import is_quiet
from phoenix_core.events import Event
from phoenix_core.timeline import Phase, Recovery, recoveries

# A process that got SIGKILL may still finish a system call; an event this long after the receipt is from a living one.
STILL_ALIVE_NS: Final = 1_000_000_000
TOLD_LATE_NS: Final = 1_000_000_000
"""A write that failed while a fault lasted may be told of this much after its end."""


def run_checks(evidence: Evidence) -> dict[str, CheckResult]:
    """The checks that the scenario asks for, and whether its faults fired. A check that crashes has judged nothing."""
    results: dict[str, CheckResult] = {}
    wanted = evidence.scenario.checks
    # Whatever else is asked for: without its fault, or with one that stays, a trial has shown nothing.
    for name in wanted if "fired" in wanted or not evidence.asked else ("fired", *wanted):
        try:
            results[name] = CHECK_FUNCTIONS[name](evidence)
        except Exception as error:
            results[name] = unknown(f"the check itself failed: {type(error).__name__}: {error}")
    return results


# --- fired -----------------------------------------------------------------------------------------------------------


def fired(evidence: Evidence) -> CheckResult:
    """Every fault that was asked for has a receipt, and nothing that was recorded contradicts it.

    A request that never was a fault (of no known kind, say) was refused, and is nobody's miss.
    """
    receipts = {str(e.data.get("fault")): e for e in evidence.run.events if e.kind == "fault_injected"}
    missed = {str(e.data.get("fault")): e for e in evidence.run.events if e.kind == "fault_missed"}
    for receipt in receipts.values():
        if (sign := _sign_of_life_after(receipt, evidence.run.events)) is not None:
            late_s = (sign.at - receipt.at) / 1e9
            fault, kind = receipt.data.get("fault"), receipt.data.get("kind")
            claim = f"the receipt says {kind} of {receipt.worker}"
            return failed(f"{fault}: {claim}, but it reported {sign.kind} {late_s:.1f} s later")
    for contradiction in (_not_healed(evidence.run.events), _not_damaged(evidence.run.events)):
        if contradiction:
            return failed(contradiction)
    for planned in evidence.asked:
        if planned.id in receipts:
            continue
        if planned.id not in missed:
            return unknown(f"{planned.id} was asked for, but there is neither a receipt nor a reason why not")
        return unknown(f"{planned.id} was missed: {missed[planned.id].data.get('reason', 'no reason recorded')}")
    if not receipts:
        return passed("no fault was asked for")
    for event in evidence.run.events:
        if event.kind == "fault_reverted" and (why := _unseen(event)):
            return unknown(f"{event.data.get('fault')}: taken back, but nobody could see whether it is healed: {why}")
    if idle := _without_effect(evidence.run.events):
        return unknown(idle)
    for receipt in receipts.values():
        if late := _other_phase(receipt, evidence.run.events):
            return unknown(late)
    return passed(f"{count(len(receipts), 'fault')} injected, as the receipts say")


def _other_phase(receipt: Event, events: Sequence[Event]) -> str:
    """What the fault hit in place of the phase it was meant for: on a busy machine a short one can be over too soon."""
    trigger, hit = receipt.data.get("trigger"), phase_hit(receipt, events)
    if not isinstance(trigger, Mapping) or trigger.get("offset_s"):
        return ""  # whoever asks for a moment after a phase began means that moment, whatever it is in
    if (meant := trigger.get("recovery_phase")) is not None:
        phases = Underway(event for event in events if event.at < receipt.at).going_on
        found = " and ".join(sorted(phases)) or "no recovery"
        return (
            "" if meant in phases else f"{receipt.data.get('fault')} was meant for {meant}, but hit {found}: too late"
        )
    if hit is None or "phase" not in trigger:
        return ""
    for one in filter(None, (hit, copy_hit(receipt, events))):
        if one["phase"] == trigger["phase"] and trigger.get("step") in (None, one["step"]):
            return ""
    meant = f"{trigger['phase']} of step {trigger['step']}" if "step" in trigger else str(trigger["phase"])
    where = f"{hit['phase']} of step {hit['step']}"
    return f"{receipt.data.get('fault')} was meant for {meant}, but hit {receipt.worker} in {where}: it came too late"


def _not_healed(events: Sequence[Event]) -> str:
    """A network fault that was taken back, but of which the probe says that it is still there."""
    for event in events:
        still = _scope(event) is Scope.NETWORK and event.data.get("alive") is not True and not _unseen(event)
        if event.kind == "fault_reverted" and still:
            return f"{event.data.get('fault')}: taken back, but not seen to be healed: {event.data.get('proof')}"
    return ""


def _unseen(reverted: Event) -> str:
    """Why nobody could look whether a network fault is gone; empty where somebody did."""
    proof = reverted.data.get("proof")
    return str(proof.get("unknown", "")) if isinstance(proof, Mapping) else ""


def _not_damaged(events: Sequence[Event]) -> str:
    """A checkpoint that a receipt calls damaged, or gone, and from which the job went on all the same."""
    from_disk = {e.generation for e in events if e.kind == "state_restored" and e.data.get("source") == "disk"}
    resumed = [e for e in events if e.kind == "generation_resumed" and e.generation in from_disk]
    for receipt in (e for e in events if e.kind == "fault_injected"):
        boundary = _boundary_of(receipt)
        again = min((e.at for e in events if e.at > receipt.at and _is_whole_again(e, receipt, boundary)), default=None)
        for event in resumed:
            if event.step == boundary and receipt.at < event.at and (again is None or event.at < again):
                claim = f"the receipt says {receipt.data.get('kind')} of the checkpoint of step {boundary}"
                late_s = (event.at - receipt.at) / 1e9
                return f"{receipt.data.get('fault')}: {claim}, but the job went on from it {late_s:.1f} s later"
    return ""


def _is_whole_again(event: Event, receipt: Event, boundary: int | None) -> bool:
    """The job came to that step once more, and writes a checkpoint of it anew; or what was moved is back."""
    if event.kind == "fault_reverted":
        return event.data.get("fault") == receipt.data.get("fault")
    return event.kind == "step_committed" and boundary is not None and event.step == boundary - 1


def _boundary_of(receipt: Event) -> int | None:
    """The step whose checkpoint the fault hit, by the number in its name; None for all other faults."""
    proof = receipt.data.get("proof")
    number = re.search(r"\d+", str(proof.get("checkpoint", ""))) if isinstance(proof, Mapping) else None
    return None if number is None else int(number[0])


_COUNTED: Final = {
    "operations": "no file was touched",
    "steps": "no step was taken",
    "nr_throttled": "nobody wanted more of a core than there was",
}
"""What some faults count while they last, and what it means that this is still zero at their end."""


def _without_effect(events: Sequence[Event]) -> str:
    """A slow disk that nobody used while it was slow, and the like."""
    for event in events:
        proof = event.data.get("proof")
        if event.kind != "fault_reverted" or not isinstance(proof, Mapping):
            continue
        spared = event.data.get("alive") is True and not proof.get("oom_kill")
        if event.data.get("kind") == PROCESS_OOM.kind and spared:
            return f"{event.data.get('fault')}: {event.worker} lived on: it wanted no more memory while it got none"
        if event.data.get("kind") == DISK_FULL.kind and not _met_a_full_disk(event, events):
            return f"{event.data.get('fault')}: nobody was told that the disk is full while it was"
        for name, nothing in _COUNTED.items():
            if proof.get(name) == 0:
                return f"{event.data.get('fault')}: {nothing} while {event.data.get('kind')} lasted"
    return ""


def _met_a_full_disk(reverted: Event, events: Sequence[Event]) -> bool:
    name = reverted.data.get("fault")
    since = next((e.at for e in events if e.kind == "fault_injected" and e.data.get("fault") == name), 0)
    refused = (event.at for event in events if event.kind == "checkpoint_written" and event.data.get("error"))
    return any(since <= at <= reverted.at + TOLD_LATE_NS for at in refused)


def _scope(event: Event) -> Scope:
    kind = FAULT_KINDS.get(str(event.data.get("kind")))
    return Scope.PROCESS if kind is None else kind.scope


def _sign_of_life_after(receipt: Event, events: Sequence[Event]) -> Event | None:
    if _scope(receipt) is not Scope.PROCESS:
        return None  # whose network is cut goes on to live, and may say so
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
        return unknown(f"the job did not complete: {_why(evidence)}" if evidence.run.error else "no fault was injected")
    judged = [judge_recovery(outcome, evidence) for outcome in evidence.outcomes]
    for wanted in (Verdict.FAIL, Verdict.UNKNOWN):
        for result in judged:
            if result.verdict is wanted:
                return result
    if not evidence.run.completed:
        return failed(f"every fault was recovered from, but the job did not complete: {_why(evidence)}")
    steps = evidence.scenario.steps
    committed = steps_committed(evidence.run.events, evidence.scenario.cluster.world_size)
    if committed != steps:
        return failed(f"the job says it completed, but all ranks committed only {committed} of {steps} steps")
    return passed(_tally(evidence.outcomes, evidence.run.events))


def _tally(outcomes: Sequence[FaultOutcome], events: Sequence[Event]) -> str:
    """What happened, in numbers, where all of it is well."""
    whole = sum(outcome.fault is not None and outcome.recovery is not None for outcome in outcomes)
    replaced = sum(outcome.replacement is not None for outcome in outcomes)
    lost_nobody = [one.fault for one in outcomes if one.recovery is None and one.replacement is None]
    anew = sum(fault is not None and _met_anew(fault, events) is not None for fault in lost_nobody)
    led = sum(fault is not None and fault.worker in SINGLE for fault in lost_nobody)
    quiet = sum(fault is not None and is_quiet(fault) for fault in lost_nobody)
    unnoticed = len(lost_nobody) - anew - led - quiet
    strangers = sum(outcome.fault is None for outcome in outcomes)
    told = [count(whole, "whole recovery", "whole recoveries")] if whole else []
    told += [f"{count(replaced, 'lost spare')} replaced"] if replaced else []
    told += [f"{count(anew, 'broken connection')} after which the same ranks went on"] if anew else []
    told += [f"{count(led, 'coordinator')} replaced"] if led else []
    told += [f"{count(quiet, 'fault')} through which the job went on"] if quiet else []
    told += [f"{count(unnoticed, 'fault')} taken back in time"] if unnoticed else []
    told += [f"{strangers} more without a fault of ours"] if strangers else []
    return "; ".join(told) or "nothing had to be recovered"


def judge_outcome(outcome: FaultOutcome, evidence: Evidence) -> dict[str, Verdict]:
    """The verdicts of the checks that can tell one fault from another."""
    judges = {"recovered": judge_recovery, "attribution": judge_blame}
    return {name: judge(outcome, evidence).verdict for name, judge in judges.items()}


def judge_recovery(outcome: FaultOutcome, evidence: Evidence) -> CheckResult:
    """One fault (or one recovery that no fault explains) by itself."""
    fault, name = outcome.fault, str(outcome.fault.data.get("fault")) if outcome.fault else "a failure without a fault"
    if outcome.recovery is not None:
        final = _finally(outcome.recovery, evidence.run.events)
        if final.complete:
            return passed(f"{name}: recovered in {final.recovery_s:.3f} s")
        if evidence.run.completed or not any(other.fault for other in evidence.outcomes):
            return unknown(f"{name}: the record of the recovery is not whole ({_open_phase(final)})")
        return failed(f"{name}: the recovery did not end ({_open_phase(final)}): {_why(evidence)}")
    assert fault is not None
    if _resumed_unnoticed(outcome, evidence.run.events):
        back = f"{name}: was taken back before it was taken for a failure"
        if evidence.run.completed:
            return passed(f"{back}; the job went on")
        return failed(f"{back}, but the job did not complete: {_why(evidence)}")
    if evidence.run.completed and (generation := _met_anew(fault, evidence.run.events)) is not None:
        return passed(f"{name}: nobody was lost; all ranks met anew in generation {generation} and went on")
    if is_quiet(fault):
        well = f"{name}: the job went on; nothing had to be recovered"
        broken = f"{name}: nobody had failed, but the job did not complete: {_why(evidence)}"
        return passed(well) if evidence.run.completed else failed(broken)
    if fault.worker in SINGLE:
        return _judge_single(outcome, name, evidence)
    if fault.rank is None:
        return _judge_spare(outcome, name, evidence)
    if evidence.run.completed and _had_finished(fault, evidence):
        return unknown(f"{name}: hit rank {fault.rank} after its last step; there was nothing left to recover")
    return failed(f"{name}: nobody noticed that rank {fault.rank} ({fault.worker}) was hit")


def _judge_single(outcome: FaultOutcome, name: str, evidence: Evidence) -> CheckResult:
    """The coordinator or the launcher holds no state of the training: the job goes on with another one, or ends."""
    assert outcome.fault is not None
    who, at = outcome.fault.worker, outcome.fault.at
    if not evidence.run.completed:
        return failed(f"{name}: hit the {who}, and the job did not complete: {_why(evidence)}")
    again = next((e for e in evidence.run.events if e.kind == "coordinator_started" and e.at > at), None)
    if who == "coordinator" and again is not None:
        return passed(f"{name}: another coordinator led {(again.at - at) / 1e9:.3f} s later; no rank was touched")
    return unknown(f"{name}: hit the {who}, and the job ended before that mattered")


def _judge_spare(outcome: FaultOutcome, name: str, evidence: Evidence) -> CheckResult:
    """A spare holds no state, so no rank has to be recovered: all there is to do is to park a new one."""
    assert outcome.fault is not None
    spare = outcome.fault.worker
    if not evidence.run.completed:
        return failed(f"{name}: hit a spare, and the job did not complete: {_why(evidence)}")
    if outcome.replacement is not None:
        return passed(f"{name}: spare {spare} was replaced by {outcome.replacement.worker}; no rank was touched")
    if quarantined(outcome.fault, evidence.run.events) is not None:
        return passed(f"{name}: spare {spare} was ended with the quarantine of its node; no rank was touched")
    exited = any(e.kind == "worker_exited" and e.worker == spare for e in evidence.run.events)
    if outcome.detected is not None or exited:
        return unknown(f"{name}: the job ended before a new spare was parked in place of {spare}")
    return unknown(f"{name}: the job ended before anyone noticed the loss of spare {spare}")


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


def _met_anew(fault: Event, events: Sequence[Event]) -> int | None:
    """The generation in which the same ranks went on after a connection had broken; None where they did not have to."""
    broken = [e for e in events if e.kind == "collective_broken" and e.at >= fault.at]
    resumed = [e for e in events if e.kind == "generation_resumed" and broken and e.at >= broken[0].at]
    return resumed[0].generation if resumed else None


def _had_finished(fault: Event, evidence: Evidence) -> bool:
    last = evidence.scenario.steps - 1
    return any(
        e.kind == "step_committed" and e.rank == fault.rank and e.step == last and e.at <= fault.at
        for e in evidence.run.events
    )


# --- agreement, leaks ------------------------------------------------------------------------------------------------


def agreement(evidence: Evidence) -> CheckResult:
    """All ranks end with the same protected state, where they are replicas of each other."""
    digests, size = final_digests(evidence.run.events), evidence.scenario.cluster.world_size
    if any(event.kind == "state_digest" and event.data.get("sharded") for event in evidence.run.events):
        return passed("the state is sharded: no rank is a replica of another, the twin check compares each part")
    groups: dict[str, list[int]] = {}
    for rank, digest in sorted(digests.items()):
        groups.setdefault(digest, []).append(rank)
    if len(groups) > 1:
        sides = " against ".join(f"{ranks} ({digest[:12]})" for digest, ranks in groups.items())
        return failed(f"the final states of the ranks differ: {sides}")
    if len(digests) < size:
        return unknown(f"only {len(digests)} of {size} ranks reported a final digest")
    return passed(f"the final digest of all {size} ranks is {next(iter(groups))[:12]}")


def no_leak(evidence: Evidence) -> CheckResult:
    """Nothing that the trial started or made is left on the machine."""
    if evidence.leaks is None:
        return unknown("nobody looked for what was left")
    if left := evidence.leaks.everything:
        return failed(f"left behind: {', '.join(left)}")
    return passed("nothing of the trial is left on this machine")


CHECK_FUNCTIONS: Final[Mapping[str, Callable[[Evidence], CheckResult]]] = {
    "fired": fired,
    "recovered": recovered,
    "twin": twin,
    "agreement": agreement,
    "no_leak": no_leak,
    "attribution": attribution,
    "data_once": data_once,
    "gpu_health": gpu_health,
}


def _why(evidence: Evidence) -> str:
    return evidence.run.error.partition("\n")[0] or "no reason recorded"
