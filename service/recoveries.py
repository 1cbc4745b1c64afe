"""The events that recoveries are computed from, without reading a whole run.

Training events come by the thousand and a recovery needs a handful of them: this module asks the
database for exactly those, so that the cost does not grow with the length of the run.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from chaos.reading import Event
from service.tables import EventRow

TRAINING = ("phase_entered", "step_committed")

# A survivor is at most one step ahead of where it resumes, and every rank commits that step next.
_STEPS_AROUND = 4
# How far to look for what a worker did last before it failed, or was hit.
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
            rows |= _before(session, row, EventRow.at < row.at)
        if row.kind == "fault_injected":
            # What the target was doing then. Where it is not the process that is hit, nobody may ever be detected.
            rows |= _before(session, row, EventRow.at <= row.at, EventRow.kind == "phase_entered")
    return sorted((to_event(row) for row in rows.values()), key=lambda event: event.at)


def _before(session: Session, row: EventRow, *where: ColumnElement[bool]) -> dict[int, EventRow]:
    """The last of these events of the worker that `row` is about: its last sign of life, its last phase."""
    query = (
        select(EventRow)
        .where(
            EventRow.id.between(row.id - _EVENTS_BEFORE, row.id + _EVENTS_BEFORE),
            EventRow.run_id == row.run_id,
            EventRow.part == "run",
            EventRow.worker == row.worker,
            *where,
        )
        .order_by(EventRow.at.desc())
        .limit(1)
    )
    return {found.id: found for found in session.scalars(query)}
