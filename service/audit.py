"""The log of every change: who did what to what, and why; written in the transaction that makes the change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.callers import Caller
from service.control_tables import AuditRow
from service.fitting import fit_text
from service.store import now


def record(
    session: Session,
    caller: Caller,
    action: str,
    target: str,
    *,
    reason: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    row = AuditRow(
        at=now(),
        actor=caller.name,
        role=caller.role,
        action=action,
        target=fit_text(target, 100),
        reason=reason or None,
        detail=dict(detail or {}),
    )
    session.add(row)


def entries(*, actor: str | None, action: str | None, target: str | None, since: datetime | None) -> Select[AuditRow]:
    query = select(AuditRow)
    for column, value in ((AuditRow.actor, actor), (AuditRow.action, action), (AuditRow.target, target)):
        if value is not None:
            query = query.where(column == value)
    return query if since is None else query.where(AuditRow.at >= since)
