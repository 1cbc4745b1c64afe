"""The events that recoveries are computed from, without reading a whole run.

Training events come by the thousand and a recovery needs a handful of them: this module asks the
database for exactly those, so that the cost does not grow with the length of the run.
"""

from __future__ import annotations

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from chaos.reading import Event
from service.tables import EventRow

TRAINING = ("phase_entered", "step_committed")

# A survivor is at most one step ahead of where it resumes, and every rank commits that step next.
_STEPS_AROUND = 4
# How far back to look for the last sign of life of a worker that failed without a fault of ours.
_EVENTS_BEFORE = 5000


def to_event(row: EventRow) -> Event:
    return Event(
        kind=row.kind,
        at=row.at,
        host=row.host,
        boot=row.boot,
        node=row.node,
        worker=row.worker,
        generation=row.generation,
        rank=row.rank,
        step=row.step,
        data=row.data,
    )


def relevant_events(session: Session, trial: str) -> list[Event]:
    """Of the disturbed part: all but training events, and the training events around each recovery."""
    of_run = and_(EventRow.trial_id == trial, EventRow.part == "run")
    query = select(EventRow).where(of_run, EventRow.kind.not_in(TRAINING))
    rows = {row.id: row for row in session.scalars(query)}
    control = list(rows.values())
    spans = [
        EventRow.step.between(row.step, row.step + _STEPS_AROUND)
        for row in control
        if row.kind == "generation_resumed" and row.step is not None
    ]
    if spans:
        query = select(EventRow).where(of_run, EventRow.kind.in_(TRAINING), or_(*spans))
        rows |= {row.id: row for row in session.scalars(query)}
    for row in control:
        if row.kind == "failure_detected" and row.rank is not None:
            rows |= _signs_of_life(session, row)
    return sorted((to_event(row) for row in rows.values()), key=lambda event: event.at)


def _signs_of_life(session: Session, failure: EventRow) -> dict[int, EventRow]:
    query = (
        select(EventRow)
        .where(
            EventRow.id.between(failure.id - _EVENTS_BEFORE, failure.id + _EVENTS_BEFORE),
            EventRow.run_id == failure.run_id,
            EventRow.part == "run",
            EventRow.worker == failure.worker,
            EventRow.at < failure.at,
        )
        .order_by(EventRow.at.desc())
        .limit(1)
    )
    return {row.id: row for row in session.scalars(query)}
