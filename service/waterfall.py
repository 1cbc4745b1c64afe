"""The bars and instants of a recovery's waterfall: one row for the coordinator, one per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.reading import Event, Phase, Recovery
from service.shapes import Bar, Instant

COORDINATOR: Final = "coordinator"
_INSTANTS: Final = ("fault_injected", "failure_detected", "spare_assigned", "generation_resumed")


def bars(events: Sequence[Event], recovery: Recovery, first_at: int) -> list[Bar]:
    """What each party did when. The coordinator's bars are the phases, which tile the recovery."""
    drawn: list[Bar] = []
    start = recovery.started_ns
    for phase in Phase:
        if (end := recovery.ends.get(phase)) is not None:
            drawn.append(_bar(COORDINATOR, phase, start, end, first_at))
            start = end
    for rank, worker in enumerate(_ranks(events, recovery.generation)):
        drawn += _bars_of_rank(events, recovery, rank, worker, first_at)
    return drawn


def instants(events: Sequence[Event], recovery: Recovery, first_at: int) -> list[Instant]:
    """The moments worth a mark, within the recovery."""
    ended = max(recovery.ends.values(), default=recovery.started_ns)
    marks = []
    for event in events:
        if event.kind not in _INSTANTS or not recovery.started_ns <= event.at <= ended:
            continue
        row = f"rank {event.rank}" if event.rank is not None else COORDINATOR
        marks.append(Instant(row=row, label=event.kind, at_s=(event.at - first_at) / 1e9))
    return marks


def _bars_of_rank(events: Sequence[Event], recovery: Recovery, rank: int, worker: str, first_at: int) -> list[Bar]:
    """A survivor leaves the broken step; a spare builds its model; then both go the same way."""
    own = [event for event in events if event.worker == worker and event.generation == recovery.generation]
    assigned = next((event for event in own if event.kind == "spare_assigned"), None)
    start = assigned.at if assigned else recovery.ends.get(Phase.DETECT, recovery.started_ns)
    first = ("model_built", Phase.REPLACE) if assigned else ("worker_quiesced", Phase.QUIESCE)
    drawn = []
    for kind, phase in (
        first,
        ("communicator_ready", Phase.RECONSTRUCT),
        ("state_restored", Phase.RESTORE),
        ("step_committed", Phase.RECOMPUTE),
    ):
        end = _instant(own, kind, recovery.resume_step)
        if end is not None:
            drawn.append(_bar(f"rank {rank}", phase, min(start, end), end, first_at))
            start = max(start, end)
    return drawn


def _instant(own: Sequence[Event], kind: str, resume_step: int | None) -> int | None:
    if kind == "step_committed":
        return next((event.at for event in own if event.kind == kind and event.step == resume_step), None)
    return max((event.at for event in own if event.kind == kind), default=None)


def _ranks(events: Sequence[Event], generation: int) -> list[str]:
    for event in events:
        if event.kind == "world_formed" and event.generation == generation:
            ranks = event.data.get("ranks")
            return [str(worker) for worker in ranks] if isinstance(ranks, list) else []
    return []


def _bar(row: str, phase: Phase, start: int, end: int, first_at: int) -> Bar:
    return Bar(row=row, label=phase.value, start_s=(start - first_at) / 1e9, end_s=(end - first_at) / 1e9)
