"""Schedules in the database: make, pause, fire, and notice when one has become stale.

Every service on the database looks for what is due. An instant is claimed in a write transaction (these are
serialised), together with the run that comes of it, so that each fires once however many look.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chaos.errors import ChaosError
from service import audit, endings, planning, store, webhooks
from service.callers import SERVICE, Caller
from service.control_tables import Firing, Schedule
from service.problems import Problem
from service.settings import Settings
from service.shapes import NewRun
from service.states import RunState
from service.tables import Run
from service.timing import InvalidTiming, Kind, Timing


class Overlap(StrEnum):
    """What happens when it is due and the run before has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_PREVIOUS = "cancel_previous"


class FiringOutcome(StrEnum):
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"
    FAILED = "failed"


def timing(schedule: Schedule) -> Timing:
    return Timing(
        kind=Kind(schedule.kind),
        timezone=schedule.timezone,
        cron=schedule.cron,
        every_s=schedule.every_s,
        at=schedule.at,
    )


def all_schedules(session: Session) -> Sequence[Schedule]:
    return session.scalars(select(Schedule).order_by(Schedule.name)).all()


def due(session: Session) -> list[Schedule]:
    query = select(Schedule).where(Schedule.paused_at.is_(None), Schedule.next_due <= store.now())
    return list(session.scalars(query.order_by(Schedule.next_due)))


def last_firing(session: Session, schedule: str) -> Firing | None:
    query = select(Firing).where(Firing.schedule_id == schedule).order_by(Firing.due_at.desc()).limit(1)
    return session.scalars(query).one_or_none()


def fire_due(session: Session, settings: Settings) -> list[Firing]:
    """What is due now, each once; what is overdue for longer than its grace is only written down."""
    fired = []
    for schedule in due(session):
        at = store.now()
        assert schedule.next_due is not None
        try:
            last, earlier, following = timing(schedule).due(schedule.next_due, at)
        except InvalidTiming as error:  # made when this was not refused yet; the others must not wait for it
            fired.append(_failed(session, schedule, schedule.next_due, f"{error.field}: {error}"))
            schedule.next_due = None
            continue
        detail = "earlier instants were missed while nobody looked" if earlier else None
        if at - last > timedelta(seconds=schedule.misfire_grace_s):
            late = (at - last).total_seconds()
            detail = f"noticed {late:.0f} s late, which is more than its grace of {schedule.misfire_grace_s:g} s"
            firing = _record(session, schedule, last, FiringOutcome.MISSED, None, detail)
        else:
            firing = fire(session, settings, schedule, last, SERVICE, detail)
        # Where following lies in the past as well, the next tick finds it.
        schedule.next_due = following
        fired.append(firing)
    return fired


def fire(
    session: Session, settings: Settings, schedule: Schedule, at: datetime, caller: Caller, detail: str | None = None
) -> Firing:
    """Start its run now, unless the one before is in the way."""
    before = unfinished(session, schedule.id)
    if before is not None and schedule.overlap == Overlap.SKIP:
        reason = f"run {before.id} of this schedule has not ended"
        return _record(session, schedule, at, FiringOutcome.SKIPPED, None, reason)
    try:
        body = NewRun.model_validate(schedule.document)
        plan = planning.plan(settings, body)
    except (Problem, ChaosError, ValueError) as error:
        return _failed(session, schedule, at, str(error))
    if before is not None and schedule.overlap == Overlap.CANCEL_PREVIOUS:  # only for one that takes its place
        endings.cancel(session, before, f"schedule {schedule.name} was due again")
    run = store.add_run(
        session,
        plan,
        suite=body.suite,
        revision=body.revision,
        schedule=schedule.id,
        by=caller.name,
        reason=f"schedule {schedule.name}, due {at:%Y-%m-%d %H:%M} UTC",
    )
    what = {"run": run.id, "due_at": at.isoformat()}
    audit.record(session, caller, "schedule.fire", schedule.id, reason=detail, detail=what)
    return _record(session, schedule, at, FiringOutcome.STARTED, run.id, detail)


def unfinished(session: Session, schedule: str) -> Run | None:
    states = (RunState.QUEUED, RunState.RUNNING)
    query = select(Run).where(Run.schedule_id == schedule, Run.state.in_(states)).order_by(Run.seq.desc()).limit(1)
    return session.scalars(query).one_or_none()


def pause(session: Session, schedule: Schedule, caller: Caller, reason: str) -> None:
    if schedule.paused_at is None:
        schedule.paused_at, schedule.paused_reason, schedule.next_due = store.now(), reason or None, None
        audit.record(session, caller, "schedule.pause", schedule.id, reason=reason)


def resume(session: Session, schedule: Schedule, caller: Caller, reason: str) -> None:
    """What would have been due meanwhile is not made up for. Raises Problem 409."""
    if schedule.paused_at is not None:
        try:
            schedule.next_due = timing(schedule).next_after(store.now())
        except InvalidTiming as error:
            detail = f"{error.field}: {error}; replace the schedule by one that can be due"
            raise Problem(409, "invalid-schedule", detail) from None
        schedule.paused_at = schedule.paused_reason = None
        audit.record(session, caller, "schedule.resume", schedule.id, reason=reason)


# --- stale -----------------------------------------------------------------------------------------------------------


def well_since(session: Session, schedule: Schedule) -> datetime:
    """When a run of it ended in order for the last time; its making, before the first."""
    query = select(func.max(Run.finished_at)).where(Run.schedule_id == schedule.id, Run.state == RunState.FINISHED)
    newest: datetime | None = session.scalar(query)
    return newest or schedule.created_at


def is_stale(session: Session, schedule: Schedule) -> bool:
    """Nothing has come of it for longer than it may be: a nightly that nobody misses is worth nothing."""
    if schedule.stale_after_s is None or schedule.paused_at is not None:
        return False
    return store.now() - well_since(session, schedule) > timedelta(seconds=schedule.stale_after_s)


def watch(session: Session) -> list[Schedule]:
    """Those that have just become stale; told once, until a run of theirs has ended again."""
    become = []
    for schedule in all_schedules(session):
        if schedule.stale_after_s is None:
            continue
        stale = is_stale(session, schedule)
        if stale and schedule.stale_told_at is None:
            schedule.stale_told_at = store.now()
            since = well_since(session, schedule)
            told = {"schedule": schedule.id, "name": schedule.name, "no_run_ended_since": since.isoformat()}
            webhooks.tell(session, "schedule.stale", told, also=schedule.webhook_id)
            become.append(schedule)
        elif not stale:
            schedule.stale_told_at = None
    return become


def _failed(session: Session, schedule: Schedule, at: datetime, error: str) -> Firing:
    told = {"schedule": schedule.id, "name": schedule.name, "error": error}
    webhooks.tell(session, "schedule.failed", told, also=schedule.webhook_id)
    return _record(session, schedule, at, FiringOutcome.FAILED, None, error)


def _record(
    session: Session, schedule: Schedule, at: datetime, outcome: FiringOutcome, run: str | None, detail: str | None
) -> Firing:
    values: dict[str, Any] = {"fired_at": store.now(), "outcome": outcome, "run_id": run, "detail": detail}
    firing = Firing(schedule_id=schedule.id, due_at=at, **values)
    session.add(firing)
    session.flush()
    return firing
