"""The attribution check: whom the detector named, and as what, against what was injected. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chaos.evidence import Evidence
from chaos.recoveries import FaultOutcome
from chaos.verdict import CheckResult, Verdict, count, failed, passed, unknown
from phoenix_core.events import Event

_STALLS: Final = ("stopped", "silent", "no_progress", "hang")

# What a detector may rightly call a fault of this kind; of a kind that is not here, any cause will do.
CAUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "process_kill": ("exit", "node_lost"),
    "process_stop": ("node_lost", *_STALLS),
    "process_terminate": ("exit", "node_lost"),
    "process_oom": ("exit",),
    "process_exception": ("exit", "device_error"),
    "process_segfault": ("exit",),
    "process_abort": ("exit",),
    "gil_hold": _STALLS,
    "native_hang": _STALLS,
    "collective_hang": _STALLS,
    "gpu_xid": ("device_error", "exit", *_STALLS),
    "network_partition": ("node_lost", "cut_off", *_STALLS),
}
# Shapes of a partition that leave more than one node in the wrong.
_MANY_SIDES: Final = ("halves", "bridge", "majority_ring")
_WELL: Final = "nobody was wronged"


def attribution(evidence: Evidence) -> CheckResult:
    """The detector blamed those that were hit, for a cause that fits, and nobody else."""
    judged = [judge_blame(outcome, evidence) for outcome in evidence.outcomes]
    judged += [_judge_stragglers(evidence)]
    for wanted in (Verdict.FAIL, Verdict.UNKNOWN):
        for result in judged:
            if result.verdict is wanted:
                return result
    named = sum(outcome.fault is not None and _blamed(outcome) != [] for outcome in evidence.outcomes)
    if not named:
        return passed("nobody had to be blamed, and nobody was")
    return passed(f"{count(named, 'fault')} blamed on those that were hit, for a cause that fits")


def judge_blame(outcome: FaultOutcome, evidence: Evidence) -> CheckResult:
    """One fault (or one recovery that no fault explains) by itself."""
    blamed, fault = _blamed(outcome), outcome.fault
    if fault is None:
        # A process that ended by itself is rightly called so; but one that lived and was taken for stuck was not. Of
        # many that were cut off together each may be found by itself.
        faults = [other.fault for other in evidence.outcomes if other.fault is not None]
        began = outcome.recovery.started_ns if outcome.recovery is not None else 0
        if any(_may_be_anybody(one) and one.at <= began for one in faults):
            return passed(_WELL)
        wrong = [text for worker, cause, text in blamed if cause != "exit" and not _is_hit(worker, evidence)]
        return failed(f"{wrong[0]} was blamed, and nothing had been injected there") if wrong else passed(_WELL)
    name = str(fault.data.get("fault"))
    if not blamed:
        return passed(_WELL)  # whether it had to be noticed is the question of another check
    if strangers := [text for worker, _, text in blamed if not _is_hit(worker, evidence)]:
        if _may_be_anybody(fault):
            return passed(_WELL)
        return failed(f"{name}: hit {_place(fault.worker, fault.rank)}, but {strangers[0]} was blamed")
    allowed = CAUSES.get(str(fault.data.get("kind")))
    for worker, cause, text in blamed:
        if worker == fault.worker and allowed is not None and cause not in allowed:
            return failed(f"{name}: {fault.data.get('kind')} was taken for {cause} ({text})")
    if fault.worker not in [worker for worker, _, _ in blamed] and fault.rank is not None:
        # Another worker of the same node, or one that a further fault hit in the same generation.
        return unknown(f"{name}: hit {_place(fault.worker, fault.rank)}, but only {blamed[0][2]} was blamed")
    return passed(_WELL)


def _judge_stragglers(evidence: Evidence) -> CheckResult:
    """Whoever is named as slow was made slow, and who was made slow long enough is named."""
    named = [event for event in evidence.run.events if event.kind == "straggler_suspected"]
    for event in named:
        if not _is_hit(event.worker or "", evidence):
            return failed(f"{_place(event.worker, event.rank)} was named as slow, and nothing had been injected there")
    for fault in (outcome.fault for outcome in evidence.outcomes if outcome.fault is not None):
        if fault.data.get("kind") == "straggle" and fault.worker not in [event.worker for event in named]:
            return unknown(f"{fault.data.get('fault')}: {_place(fault.worker, fault.rank)} was slow, and not named")
    return passed(_WELL)


def _blamed(outcome: FaultOutcome) -> list[tuple[str, str, str]]:
    """(worker, cause, both in words) of everybody that the detector named in what this fault led to."""
    found: list[tuple[str, int | None, str]] = []
    if outcome.recovery is not None:
        found += [(failure.worker, failure.rank, failure.cause) for failure in outcome.recovery.failures]
    elif outcome.detected is not None:
        event = outcome.detected
        found.append((event.worker or "", event.rank, str(event.data.get("cause", ""))))
    return [(worker, cause, f"{_place(worker, rank)} as {cause}") for worker, rank, cause in found]


def _is_hit(worker: str, evidence: Evidence) -> bool:
    """Whether a fault of ours hit this worker, its node, or the coordinator that failed."""
    nodes = {event.worker: event.node for event in evidence.run.events if event.kind == "worker_spawned"}
    faults: Sequence[Event] = [outcome.fault for outcome in evidence.outcomes if outcome.fault is not None]
    hit_nodes = {fault.node for fault in faults if fault.node is not None}
    return any(fault.worker == worker for fault in faults) or nodes.get(worker) in hit_nodes


def _may_be_anybody(fault: Event) -> bool:
    params = fault.data.get("params")
    return isinstance(params, Mapping) and params.get("shape") in _MANY_SIDES


def _place(worker: str | None, rank: int | None) -> str:
    return f"{worker}" if rank is None else f"rank {rank} ({worker})"
