"""The emergency stop: every fault is taken back and none begins until somebody releases it."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field
from sqlalchemy import not_, select

from chaos.errors import ChaosError
from service import halts, store
from service.access import CallerOf
from service.context import Service
from service.control_tables import Halt
from service.idempotency import Answer, once
from service.paging import page
from service.problems import Problem, not_found
from service.routes.common import IDEMPOTENT, PROBLEMS, Cursor, Id, Limit, ServiceOf
from service.shapes import Shape, text_of
from service.tables import FaultRow

router = APIRouter(tags=["safety"], responses=PROBLEMS)

log = logging.getLogger("phoenix.service")

NeededReason = Annotated[str, text_of(2000), Field(description="Why; kept in the audit log.")]


class NewHalt(Shape):
    """`ttl_s`: released by itself after so many seconds; else it stays until somebody releases it."""

    reason: NeededReason
    ttl_s: Annotated[float | None, Field(gt=0, le=30 * 86_400)] = None
    dry_run: bool = False


class Release(Shape):
    reason: NeededReason


class HaltShape(Shape):
    """`reverts` and `withdraws`: how many faults were active, and how many waited, when it began."""

    id: str
    reason: str
    by: str
    at: datetime
    until: datetime | None
    active: bool
    released_at: datetime | None
    released_by: str | None
    release_reason: str | None
    reverts: int
    withdraws: int


class HaltList(Shape):
    items: list[HaltShape]
    next: str | None


class HitFault(Shape):
    run: str
    fault: str
    kind: str
    worker: str | None


class WouldHalt(Shape):
    runs: list[str]
    reverts: list[HitFault]
    withdraws: list[HitFault]


class HaltDryRun(Shape):
    dry_run: Literal[True] = True
    would: WouldHalt


@router.post(
    "/halts",
    status_code=201,
    response_model=HaltShape,
    responses={
        200: {
            "model": HaltShape | HaltDryRun,
            "description": "The halt that is in force already, or what one would do (`dry_run`).",
        }
    },
    openapi_extra=IDEMPOTENT,
)
def begin_halt(service: ServiceOf, caller: CallerOf, request: Request, body: NewHalt) -> Response:
    """Revert every fault that lasts, withdraw those that wait, refuse new ones, start nothing: until released."""
    with service.database.write() as session:

        def effect() -> Answer:
            if body.dry_run:
                return Answer(status=200, body=_would(halts.reach(session)))
            present = halts.active(session)
            halt = halts.begin(session, caller, body.reason, body.ttl_s)
            status = 201 if present is None else 200
            return Answer(status=status, body=_shape(halt), location=f"/api/v1/halts/{halt.id}")

        answer = once(session, request, body, effect)
    if not body.dry_run:
        _tell_trials(service)
    return answer


@router.get("/halts")
def list_halts(
    service: ServiceOf,
    active: bool | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> HaltList:
    """Newest first."""
    with service.database.read() as session:
        query = select(Halt)
        if active is not None:
            query = query.where(halts.in_force() if active else not_(halts.in_force()))
        found, following = page(session, query, (Halt.at, Halt.id), limit=limit, cursor=cursor, newest_first=True)
        return HaltList(items=[_shape(halt) for halt in found], next=following)


@router.get("/halts/{halt_id}")
def get_halt(service: ServiceOf, halt_id: Id) -> HaltShape:
    """Why, by whom, and what became of it."""
    with service.database.read() as session:
        if (halt := session.get(Halt, halt_id)) is None:
            raise not_found("halt", halt_id)
        return _shape(halt)


@router.post("/halts/{halt_id}/release", status_code=200, response_model=HaltShape, openapi_extra=IDEMPOTENT)
def release_halt(service: ServiceOf, caller: CallerOf, request: Request, halt_id: Id, body: Release) -> Response:
    """Faults may be injected again, and the queue goes on. What was taken back stays so."""
    with service.database.write() as session:

        def effect() -> Answer:
            if (halt := session.get(Halt, halt_id)) is None:
                raise not_found("halt", halt_id)
            if not _shape(halt).active:
                raise Problem(409, "not-active", f"halt {halt.id} is over already")
            halts.release(session, halt, caller, body.reason)
            return Answer(status=200, body=_shape(halt))

        answer = once(session, request, body, effect)
    _tell_trials(service)
    return answer


def _tell_trials(service: Service) -> None:
    try:
        service.executor.deliver()
    except (OSError, ChaosError):
        # It is in the database: the executor says it again until the disk takes it.
        log.exception("a halt could not be handed to every trial yet")


def _shape(halt: Halt) -> HaltShape:
    over = halt.released_at is not None or (halt.until is not None and halt.until <= store.now())
    return HaltShape(
        id=halt.id,
        reason=halt.reason,
        by=halt.by,
        at=halt.at,
        until=halt.until,
        active=not over,
        released_at=halt.released_at,
        released_by=halt.released_by,
        release_reason=halt.release_reason,
        reverts=halt.reverts,
        withdraws=halt.withdraws,
    )


def _would(hit: halts.Reach) -> HaltDryRun:
    def listed(faults: tuple[FaultRow, ...]) -> list[HitFault]:
        return [HitFault(run=f.run_id, fault=f.id, kind=f.kind, worker=f.worker) for f in faults]

    would = WouldHalt(runs=list(hit.runs), reverts=listed(hit.reverts), withdraws=listed(hit.withdraws))
    return HaltDryRun(would=would)
