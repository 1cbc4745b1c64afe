"""Who changed what, when and why."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from service import audit
from service.control_tables import AuditRow
from service.paging import page
from service.routes.common import PROBLEMS, Cursor, Limit, ServiceOf
from service.shapes import Json, Moment, Shape

router = APIRouter(tags=["audit"], responses=PROBLEMS)

Name = Annotated[str | None, Query(max_length=100)]


class AuditShape(Shape):
    id: str
    at: datetime
    actor: str
    role: str
    action: str
    target: str
    reason: str | None
    detail: Json


class AuditPage(Shape):
    items: list[AuditShape]
    next: str | None


@router.get("/audit")
def list_audit(
    service: ServiceOf,
    actor: Name = None,
    action: Name = None,
    target: Name = None,
    since: Moment | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditPage:
    """Every change, newest first."""
    with service.database.read() as session:
        query = audit.entries(actor=actor, action=action, target=target, since=since)
        rows, following = page(session, query, (AuditRow.seq,), limit=limit, cursor=cursor, newest_first=True)
        items = [
            AuditShape(
                id=str(row.seq),
                at=row.at,
                actor=row.actor,
                role=row.role,
                action=row.action,
                target=row.target,
                reason=row.reason,
                detail=row.detail,
            )
            for row in rows
        ]
        return AuditPage(items=items, next=following)
