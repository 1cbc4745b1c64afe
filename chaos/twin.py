"""The twin check: the disturbed run against the undisturbed one of the same seed, bit for bit. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from chaos.evidence import Evidence, resumptions
from chaos.verdict import CheckResult, count, failed, passed, unknown
from phoenix_core.events import Event

# What the runtime itself adds to a `step_committed`; all else is what the training script recorded.
NOT_RECORDED: Final = ("duration_ns", "restored", "stall_ns", "copied_bytes", "sent_bytes")

Key = tuple[int, int, str]
"""(rank, step, name) of a recorded value."""


def twin(evidence: Evidence) -> CheckResult:
    """Every value recorded by any rank at any step, and the final digests, equal the undisturbed run's in every bit.

    A rank that falls out of a step which others have ended, because it died or because a peer did, is given their state
    and has recorded nothing of that step. Of such records one may be missing for each worker that died, and no more.
    """
    if evidence.twin is None:
        return unknown("there is no undisturbed run to compare with")
    for part, title in ((evidence.run, "the run"), (evidence.twin, "the undisturbed run")):
        if not part.completed:
            return unknown(f"{title} did not complete, so there is nothing to compare")
    ours, theirs = recorded_values(evidence.run.events), recorded_values(evidence.twin.events)
    for values, title in ((ours, "the run"), (theirs, "the undisturbed run")):
        if values.conflict:
            return failed(f"{title} computed a step twice with different results: {values.conflict}")
    digests, reference = final_digests(evidence.run.events), final_digests(evidence.twin.events)
    difference = _value_difference(ours.values, theirs.values) or _digest_difference(digests, reference)
    if difference:
        return failed(difference)
    if gap := _gap(evidence, ours.values.keys(), theirs.values.keys()):
        return unknown(gap)
    size = evidence.scenario.cluster.world_size
    for found, title in ((digests, "the run"), (reference, "the undisturbed run")):
        if len(found) < size:
            return unknown(f"{title} has final digests of {len(found)} ranks only")
    expected, lost = len(theirs.values), len(theirs.values) - len(ours.values)
    note = (
        f"; {count(lost, 'value')} lost where a rank fell out of a step and was given the others' state" if lost else ""
    )
    compared = f"{len(ours.values)} of {expected} recorded values and {len(digests)} final digests compared"
    return passed(f"{compared}, all equal in every bit{note}")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Exact texts of recorded values; `conflict` describes two commits of one step that disagree."""

    values: Mapping[Key, str]
    conflict: str = ""


def recorded_values(events: Sequence[Event]) -> Recorded:
    """What the script recorded with each step. Of a step that a rank committed twice the last commit counts."""
    values: dict[Key, str] = {}
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


def _gap(evidence: Evidence, ours: Set[Key], theirs: Set[Key]) -> str:
    """What should have been recorded and was not, beyond what deaths explain; empty if nothing."""
    told = {(step, rank) for rank, step, _ in theirs}
    size, steps = evidence.scenario.cluster.world_size, evidence.scenario.steps
    if silent := [(step, rank) for step in range(steps) for rank in range(size) if (step, rank) not in told]:
        return _nothing("the undisturbed run", silent)
    lost = {(step, rank) for rank, step, _ in theirs - ours}
    allowed, per_step = _deaths(evidence.run.events), Counter(step for step, _ in lost)
    # A step that nobody told of was not handed over by anybody.
    survived = {step for _, step, _ in ours}
    if beyond := [key for key in lost if per_step[key[0]] > allowed[key[0]] or key[0] not in survived]:
        return _nothing("the run", beyond)
    if extra := ours - theirs:
        rank, step, name = min(extra, key=lambda key: (key[1], key[0], key[2]))
        return f"the run recorded {name} of rank {rank} at step {step}, which the undisturbed run did not"
    return ""


def _deaths(events: Sequence[Event]) -> Counter[int]:
    """How many workers died in each step that the others had, and handed on: the one before the work was taken up."""
    resumed, deaths = resumptions(events), Counter[int]()
    for failure in events:
        if failure.kind == "failure_detected" and failure.rank is not None and failure.generation is not None:
            since = failure.generation
            deaths.update([step - 1 for generation, step in resumed if generation >= since][:1])
    return deaths


def _nothing(title: str, missing: Sequence[tuple[int, int]]) -> str:
    step, rank = min(missing)
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return f"{title} recorded nothing, or not all, for rank {rank} at step {step}{more}"


def _value_difference(ours: Mapping[Key, str], theirs: Mapping[Key, str]) -> str:
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
