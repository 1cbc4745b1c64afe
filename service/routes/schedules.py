"""Schedules: what runs by itself, when it is due next, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from chaos.verdict import Verdict
from service import audit, planning, schedules, store, views
from service.access import CallerOf
from service.callers import Caller
from service.context import Service
from service.control_tables import Firing, Schedule, Webhook
from service.etags import check_unchanged
from service.idempotency import Answer, once
from service.paging import page
from service.patterns import ONE_LINE, REVISION_NAME
from service.problems import Problem, not_found
from service.routes.common import IDEMPOTENT, IF_UNCHANGED, MOST_ITEMS, PROBLEMS, Cursor, Id, Limit, ServiceOf
from service.schedules import FiringOutcome, Overlap
from service.shapes import Moment, NewRun, RunShape, Shape, Why, text_of
from service.tables import Run
from service.timing import SHORTEST_S, InvalidTiming, Kind, Timing, zone

router = APIRouter(tags=["schedules"], responses=PROBLEMS)

NO_REASON = Why()
MOST_S = 400 * 86_400


class When(Shape):
    """A cron expression (five fields; Sunday is 0 or 7), every so many seconds, or once."""

    kind: Kind
    timezone: Annotated[str, Field(max_length=64)] = "UTC"
    cron: Annotated[str | None, Field(max_length=200)] = None
    every_s: Annotated[float | None, Field(ge=SHORTEST_S, le=MOST_S)] = None
    at: Moment | None = None

    def timing(self) -> Timing:
        """Raises Problem 422."""
        try:
            return Timing(kind=self.kind, timezone=self.timezone, cron=self.cron, every_s=self.every_s, at=self.at)
        except InvalidTiming as error:
            detail = f"{error.field}: {error}"
            errors = [{"field": error.field, "message": str(error)}]
            raise Problem(422, "invalid-schedule", detail, errors=errors) from None


class NewSchedule(When):
    """`base`: what each run is compared with: `previous`, `baseline` (of each scenario its own), or a commit.

    `misfire_grace_s`: how late it may still start, since each is noticed a moment late. `stale_after_s`: an alert when
    no run has ended in order for so long.
    """

    name: Annotated[str, text_of(100), Field(pattern=ONE_LINE)]
    run: NewRun
    overlap: Overlap = Overlap.SKIP
    misfire_grace_s: Annotated[float, Field(ge=SHORTEST_S, le=MOST_S)] = 3600.0
    stale_after_s: Annotated[float | None, Field(gt=0, le=MOST_S)] = None
    base: Annotated[str | None, Field(pattern=REVISION_NAME, max_length=100)] = None
    webhook: Annotated[str | None, Field(max_length=32)] = None
    reason: Annotated[str, Field(max_length=2000)] = ""


class Preview(When):
    count: Annotated[int, Field(ge=1, le=50)] = 5


class DueAt(Shape):
    utc: datetime
    local: str


class InstantList(Shape):
    items: list[DueAt]


class FiringShape(Shape):
    due_at: datetime
    fired_at: datetime
    outcome: FiringOutcome
    run: str | None
    verdict: Verdict | None
    detail: str | None


class FiringList(Shape):
    items: list[FiringShape]
    next: str | None


class ScheduleShape(Shape):
    id: str
    name: str
    kind: Kind
    cron: str | None
    every_s: float | None
    at: datetime | None
    timezone: str
    run: NewRun
    overlap: Overlap
    misfire_grace_s: float
    stale_after_s: float | None
    base: str | None
    webhook: str | None
    paused: bool
    paused_reason: str | None
    next_due: datetime | None
    next_due_local: str | None
    last: FiringShape | None
    stale: bool
    created_at: datetime
    created_by: str


class ScheduleList(Shape):
    items: list[ScheduleShape]
    next: str | None


@router.get("/schedules")
def list_schedules(service: ServiceOf, limit: Limit = MOST_ITEMS, cursor: Cursor = None) -> ScheduleList:
    """By name."""
    with service.database.read() as session:
        found, following = page(session, select(Schedule), (Schedule.name,), limit=limit, cursor=cursor)
        return ScheduleList(items=[_shape(session, schedule) for schedule in found], next=following)


@router.post("/schedules", status_code=201, response_model=ScheduleShape, openapi_extra=IDEMPOTENT)
def create_schedule(service: ServiceOf, caller: CallerOf, request: Request, body: NewSchedule) -> Response:
    """What it runs is checked now, and again each time that it is due."""
    with service.database.write() as session:

        def effect() -> Answer:
            schedule = Schedule(id=store.new_id("schedule"), created_at=store.now(), created_by=caller.name)
            _fill(service, session, schedule, body)
            session.add(schedule)
            session.flush()
            audit.record(
                session, caller, "schedule.create", schedule.id, reason=body.reason, detail={"name": body.name}
            )
            location = f"/api/v1/schedules/{schedule.id}"
            return Answer(status=201, body=_shape(session, schedule), location=location)

        return once(session, request, body, effect)


@router.post("/schedules/preview", status_code=200, response_model=InstantList, openapi_extra=IDEMPOTENT)
def preview(service: ServiceOf, request: Request, body: Preview) -> Response:
    """The next instants at which such a schedule would be due, in UTC and on the clock of its time zone."""
    timing = body.timing()
    instants: list[DueAt] = []
    moment: datetime | None = store.now()
    while moment is not None and len(instants) < body.count:
        if (moment := timing.next_after(moment)) is not None:
            instants.append(DueAt(utc=moment, local=_local(moment, body.timezone)))
    with service.database.write() as session:
        return once(session, request, body, lambda: Answer(status=200, body=InstantList(items=instants)))


@router.get("/schedules/{schedule_id}", response_model=ScheduleShape)
def get_schedule(service: ServiceOf, schedule_id: Id) -> Response:
    """With when it is due next and what came of the last time."""
    with service.database.read() as session:
        return _answer(session, _existing(session, schedule_id))


@router.put("/schedules/{schedule_id}", response_model=ScheduleShape, openapi_extra=IF_UNCHANGED)
def replace_schedule(
    service: ServiceOf, caller: CallerOf, request: Request, schedule_id: Id, body: NewSchedule
) -> Response:
    """All of it anew; whether it is paused, and what came of it, stays."""
    with service.database.write() as session:
        schedule = _existing(session, schedule_id)
        check_unchanged(request, bytes(_answer(session, schedule).body))
        _fill(service, session, schedule, body)
        session.flush()
        audit.record(session, caller, "schedule.replace", schedule.id, reason=body.reason, detail={"name": body.name})
        return _answer(session, schedule)


@router.delete("/schedules/{schedule_id}", status_code=204)
def delete_schedule(
    service: ServiceOf, caller: CallerOf, schedule_id: Id, reason: Annotated[str, Query(max_length=2000)] = ""
) -> None:
    """Its runs stay."""
    with service.database.write() as session:
        schedule = _existing(session, schedule_id)
        for firing in session.scalars(select(Firing).where(Firing.schedule_id == schedule.id)):
            session.delete(firing)
        session.flush()
        session.delete(schedule)
        audit.record(session, caller, "schedule.delete", schedule.id, reason=reason, detail={"name": schedule.name})


@router.post("/schedules/{schedule_id}/pause", status_code=200, response_model=ScheduleShape, openapi_extra=IDEMPOTENT)
def pause(service: ServiceOf, caller: CallerOf, request: Request, schedule_id: Id, body: Why = NO_REASON) -> Response:
    """It is not due until it is resumed. The body may be left out."""
    return _change(service, caller, request, schedule_id, body, pausing=True)


@router.post("/schedules/{schedule_id}/resume", status_code=200, response_model=ScheduleShape, openapi_extra=IDEMPOTENT)
def resume(service: ServiceOf, caller: CallerOf, request: Request, schedule_id: Id, body: Why = NO_REASON) -> Response:
    """What would have been due meanwhile is not made up for. The body may be left out."""
    return _change(service, caller, request, schedule_id, body, pausing=False)


@router.post("/schedules/{schedule_id}/run", status_code=202, response_model=RunShape, openapi_extra=IDEMPOTENT)
def run_now(service: ServiceOf, caller: CallerOf, request: Request, schedule_id: Id, body: Why = NO_REASON) -> Response:
    """As if it were due now, also while it is paused; when it is due next stays. The body may be left out."""
    with service.database.write() as session:

        def effect() -> Answer:
            schedule = _existing(session, schedule_id)
            firing = schedules.fire(
                session, service.settings, schedule, store.now(), caller, body.reason or "asked for"
            )
            if firing.run_id is None:
                raise Problem(409, "not-started", f"schedule {schedule.name}: {firing.outcome}: {firing.detail}")
            run = session.scalars(select(Run).where(Run.id == firing.run_id)).one()
            return Answer(status=202, body=views.one_run(session, run), location=f"/api/v1/runs/{run.id}")

        return once(session, request, body, effect)


@router.get("/schedules/{schedule_id}/firings")
def list_firings(service: ServiceOf, schedule_id: Id, limit: Limit = 50, cursor: Cursor = None) -> FiringList:
    """Newest first: each instant at which it was due, and what came of it."""
    with service.database.read() as session:
        schedule = _existing(session, schedule_id)
        query = select(Firing).where(Firing.schedule_id == schedule.id)
        found, following = page(session, query, (Firing.due_at,), limit=limit, cursor=cursor, newest_first=True)
        return FiringList(items=[_firing(session, firing) for firing in found], next=following)


def _change(
    service: Service, caller: Caller, request: Request, schedule_id: str, body: Why, *, pausing: bool
) -> Response:
    with service.database.write() as session:

        def effect() -> Answer:
            schedule = _existing(session, schedule_id)
            (schedules.pause if pausing else schedules.resume)(session, schedule, caller, body.reason)
            return Answer(status=200, body=_shape(session, schedule))

        return once(session, request, body, effect)


def _existing(session: Session, schedule_id: str) -> Schedule:
    if (schedule := session.get(Schedule, schedule_id)) is None:
        raise not_found("schedule", schedule_id)
    return schedule


def _fill(service: Service, session: Session, schedule: Schedule, body: NewSchedule) -> None:
    """Raises Problem and ChaosError for what can never run."""
    timing = body.timing()
    planning.plan(service.settings, body.run)
    taken = session.scalar(select(Schedule.id).where(Schedule.name == body.name, Schedule.id != schedule.id))
    if taken is not None:
        raise Problem(409, "name-taken", f"there is a schedule {body.name!r} already ({taken})")
    if body.webhook is not None:
        hook = session.get(Webhook, body.webhook)
        if hook is None or hook.deleted_at is not None:
            raise Problem(422, "invalid-schedule", f"webhook: there is no webhook {body.webhook!r}")
    next_due = timing.next_after(store.now())
    if next_due is None:
        raise Problem(422, "invalid-schedule", f"at: {body.at} lies in the past")
    schedule.name, schedule.kind, schedule.timezone = body.name, body.kind, body.timezone
    schedule.cron, schedule.every_s, schedule.at = body.cron, body.every_s, body.at
    schedule.document = body.run.model_dump(mode="json", exclude_unset=True)
    schedule.overlap, schedule.misfire_grace_s = body.overlap, body.misfire_grace_s
    schedule.stale_after_s, schedule.base, schedule.webhook_id = body.stale_after_s, body.base, body.webhook
    schedule.next_due = None if schedule.paused_at is not None else next_due


def _answer(session: Session, schedule: Schedule) -> JSONResponse:
    return JSONResponse(_shape(session, schedule).model_dump(mode="json"))


def _shape(session: Session, schedule: Schedule) -> ScheduleShape:
    last = schedules.last_firing(session, schedule.id)
    return ScheduleShape(
        id=schedule.id,
        name=schedule.name,
        kind=Kind(schedule.kind),
        cron=schedule.cron,
        every_s=schedule.every_s,
        at=schedule.at,
        timezone=schedule.timezone,
        run=NewRun.model_validate(schedule.document),
        overlap=Overlap(schedule.overlap),
        misfire_grace_s=schedule.misfire_grace_s,
        stale_after_s=schedule.stale_after_s,
        base=schedule.base,
        webhook=schedule.webhook_id,
        paused=schedule.paused_at is not None,
        paused_reason=schedule.paused_reason,
        next_due=schedule.next_due,
        next_due_local=None if schedule.next_due is None else _local(schedule.next_due, schedule.timezone),
        last=None if last is None else _firing(session, last),
        stale=schedules.is_stale(session, schedule),
        created_at=schedule.created_at,
        created_by=schedule.created_by,
    )


def _firing(session: Session, firing: Firing) -> FiringShape:
    verdict = None
    if firing.run_id is not None:
        verdict = session.scalar(select(Run.verdict).where(Run.id == firing.run_id))
    return FiringShape(
        due_at=firing.due_at,
        fired_at=firing.fired_at,
        outcome=FiringOutcome(firing.outcome),
        run=firing.run_id,
        verdict=None if verdict is None else Verdict(verdict),
        detail=firing.detail,
    )


def _local(moment: datetime, timezone: str) -> str:
    return f"{moment.astimezone(zone(timezone)):%Y-%m-%d %H:%M:%S %Z}"
