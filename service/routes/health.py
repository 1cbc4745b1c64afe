"""For whoever watches the service: does it live, can it work, and what is it doing."""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from service import halts, queue, store
from service.control_tables import ServiceRow
from service.files import trouble_with
from service.metrics import CONTENT_TYPE
from service.paging import page
from service.problems import Problem
from service.routes.common import MOST_ITEMS, PROBLEMS, Cursor, Limit, ServiceOf
from service.shapes import Health, Shape
from service.states import RunState

router = APIRouter(tags=["health"], responses=PROBLEMS)
metrics_router = APIRouter(tags=["health"], responses=PROBLEMS)
workers_router = APIRouter(tags=["queue"], responses=PROBLEMS)


class ServiceShape(Shape):
    """One service on this database. `alive`: heard of within its lease; `trouble`: why it starts nothing.
    `fingerprint`: of its machine, as the history names it.
    """

    id: str
    host: str
    fingerprint: str | None
    pid: int
    version: str
    url: str
    max_active: int
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None
    alive: bool
    trouble: str | None
    trials: list[str]


class ServiceList(Shape):
    items: list[ServiceShape]
    next: str | None


class QueueShape(Shape):
    """Trials that wait and that run; `halted` is the id of the halt by which nothing starts."""

    queued: int
    running: int
    halted: str | None


@router.get("/healthz")
def healthz() -> Health:
    """It lives; nothing else is looked at."""
    return Health(status="ok")


@router.get("/readyz")
def readyz(service: ServiceOf) -> Health:
    """503 while the database does not answer, nobody follows the trials, or nothing can be started."""
    try:
        with service.database.read() as session:
            session.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        raise Problem(503, "database-down", f"the database does not answer: {type(error).__name__}") from error
    if not service.executor.following:
        raise Problem(503, "not-following", "the thread that follows the trials is not running")
    if trouble := trouble_with(service.settings.directory):  # asked now: while nothing waits nobody else looks
        raise Problem(503, "no-room", f"no trial would be started: {trouble}")
    return Health(status="ok")


@metrics_router.get("/metrics", response_class=Response)
def metrics(service: ServiceOf) -> Response:
    """For Prometheus; where tokens are needed, a viewer's will do."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


@workers_router.get("/services")
def list_services(service: ServiceOf, limit: Limit = MOST_ITEMS, cursor: Cursor = None) -> ServiceList:
    """The services that share this database and its queue, and what each runs now."""
    lease = timedelta(seconds=service.settings.lease_s)
    with service.database.read() as session:
        running = store.running_trials(session)
        order = (ServiceRow.started_at, ServiceRow.id)
        found, following = page(session, select(ServiceRow), order, limit=limit, cursor=cursor)
        items = [
            _shape(
                row,
                alive=store.now() - row.heartbeat_at <= lease,
                trials=[t.id for t in running if t.service_id == row.id],
            )
            for row in found
        ]
        return ServiceList(items=items, next=following)


@workers_router.get("/queue")
def get_queue(service: ServiceOf) -> QueueShape:
    """How much waits, how much runs, and whether a halt keeps it from starting."""
    with service.database.read() as session:
        depth, halt = queue.depth(session), halts.active(session)
        return QueueShape(
            queued=depth[RunState.QUEUED], running=depth[RunState.RUNNING], halted=None if halt is None else halt.id
        )


def _shape(row: ServiceRow, *, alive: bool, trials: list[str]) -> ServiceShape:
    return ServiceShape(
        id=row.id,
        host=row.host,
        fingerprint=row.fingerprint,
        pid=row.pid,
        version=row.version,
        url=row.url,
        max_active=row.max_active,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        stopped_at=row.stopped_at,
        alive=alive and row.stopped_at is None,
        trouble=row.trouble,
        trials=trials,
    )
