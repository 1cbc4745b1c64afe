"""Triage of regressions: what somebody decided about a change of level, and why. The history is what detects them."""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service import audit, history, store
from service.access import CallerOf
from service.control_tables import TriageRow
from service.decisions import NewDecision, TriageState
from service.idempotency import Answer, once
from service.paging import page
from service.problems import Problem
from service.routes.common import IDEMPOTENT, MOST_ITEMS, PROBLEMS, Cursor, Limit, ServiceOf
from service.shapes import Shape

router = APIRouter(tags=["triage"], responses=PROBLEMS)

# Over which the false alarms of the gate are counted.
COUNTED_DAYS = 90


class DecisionShape(Shape):
    code: str
    state: TriageState
    reason: str
    owner: str | None
    link: str | None
    by: str
    at: datetime


class TriageShape(Shape):
    """What is so of one code: the last decision, and all of them, the newest first."""

    code: str
    state: TriageState
    decisions: list[DecisionShape]


class TriageList(Shape):
    """`decided`: codes whose last decision is not older than `days`; `false_alarms`: those that were no regression."""

    items: list[TriageShape]
    next: str | None
    days: int
    decided: int
    false_alarms: int


@router.get("/triage")
def list_triage(service: ServiceOf, limit: Limit = MOST_ITEMS, cursor: Cursor = None) -> TriageList:
    """Every code about which somebody has decided, the last decision first."""
    newest = select(TriageRow).where(TriageRow.seq.in_(select(func.max(TriageRow.seq)).group_by(TriageRow.code)))
    recent = TriageRow.at >= store.now() - timedelta(days=COUNTED_DAYS)
    with service.database.read() as session:
        last, following = page(session, newest, (TriageRow.seq,), limit=limit, cursor=cursor, newest_first=True)
        own = select(TriageRow).where(TriageRow.code.in_([row.code for row in last])).order_by(TriageRow.seq.desc())
        decisions: dict[str, list[DecisionShape]] = {row.code: [] for row in last}
        for row in session.scalars(own):
            decisions[row.code].append(_shape(row))
        decided = [row.state for row in session.scalars(newest.where(recent, TriageRow.state != TriageState.NEW))]
    return TriageList(
        items=[TriageShape(code=code, state=found[0].state, decisions=found) for code, found in decisions.items()],
        next=following,
        days=COUNTED_DAYS,
        decided=len(decided),
        false_alarms=decided.count(TriageState.FALSE_ALARM),
    )


@router.post("/triage", status_code=201, response_model=DecisionShape, openapi_extra=IDEMPOTENT)
def decide(service: ServiceOf, caller: CallerOf, request: Request, body: NewDecision) -> Response:
    """Decisions are only ever added: the last one counts, and the others tell how it came to that."""
    with service.database.write() as session:

        def effect() -> Answer:
            _refuse_unknown(session, body.code)
            row = TriageRow(
                at=store.now(),
                code=body.code,
                state=body.state,
                reason=body.reason,
                owner=body.owner,
                link=body.link,
                by=caller.name,
            )
            session.add(row)
            detail = {"state": body.state, "owner": body.owner, "link": body.link}
            audit.record(session, caller, "regression.triage", body.code, reason=body.reason, detail=detail)
            return Answer(status=201, body=_shape(row), location="/api/v1/triage")

        return once(session, request, body, effect)


def _refuse_unknown(session: Session, code: str) -> None:
    """Raises Problem 422: a decision about a code that was never measured would be seen by nobody."""
    if not history.is_measured(session, code):
        raise Problem(
            422, "invalid-request", f"code: there is no finished trial of {code!r}; name it as the history does"
        )


def _shape(row: TriageRow) -> DecisionShape:
    return DecisionShape(
        code=row.code,
        state=TriageState(row.state),
        reason=row.reason,
        owner=row.owner,
        link=row.link,
        by=row.by,
        at=row.at,
    )
