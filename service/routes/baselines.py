"""Baselines: which code each scenario is held against. `baseline` names them all where a comparison takes a base."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from sqlalchemy import select

from chaos.revisions import NoSamples, codes_named
from service import baselines, history
from service.access import CallerOf
from service.decisions import BaselineScenario, Words
from service.history_tables import BaselineRow
from service.idempotency import Answer, once
from service.paging import page
from service.patterns import REVISION_NAME
from service.problems import Problem, not_found
from service.routes.common import IDEMPOTENT, MOST_ITEMS, PROBLEMS, Cursor, Id, Limit, ServiceOf, existing_trial
from service.shapes import Shape

router = APIRouter(tags=["baselines"], responses=PROBLEMS)


class NewBaseline(Shape):
    """`code`: a commit or the beginning of one, COMMIT-DIFF, a branch or a tag, of which the scenario has trials."""

    scenario: BaselineScenario
    code: Annotated[str, Field(pattern=REVISION_NAME, max_length=200)]
    reason: Words


class BaselineShape(Shape):
    scenario: str
    code: str
    short: str
    reason: str
    by: str
    at: datetime


class BaselineList(Shape):
    items: list[BaselineShape]
    next: str | None


class BesideShape(Shape):
    """A trial beside the baseline of its scenario.

    `code`: the trial's own; null until it is in the history. `medians`: in seconds by fault and metric, of the `trials`
    of the baseline with the same scenario and machine; null for what mostly came to no end. `why_not`: why there are
    none.
    """

    code: str | None
    baseline: BaselineShape | None
    trials: int
    medians: dict[str, dict[str, float | None]]
    why_not: str | None


@router.get("/baselines")
def list_baselines(service: ServiceOf, limit: Limit = MOST_ITEMS, cursor: Cursor = None) -> BaselineList:
    """By scenario."""
    with service.database.read() as session:
        found, following = page(session, select(BaselineRow), (BaselineRow.scenario,), limit=limit, cursor=cursor)
        return BaselineList(items=[_shape(row) for row in found], next=following)


@router.post("/baselines", status_code=201, response_model=BaselineShape, openapi_extra=IDEMPOTENT)
def choose_baseline(service: ServiceOf, caller: CallerOf, request: Request, body: NewBaseline) -> Response:
    """In place of the one that the scenario had; what it was stays in the audit log."""
    with service.database.read() as session:
        measured = [code for code, _, _ in history.codes(session, body.scenario)]
    try:  # asks git, for which nobody shall wait who writes
        found = codes_named(body.code, measured, service.known.repository)
    except NoSamples as error:
        raise Problem(422, "invalid-request", f"code: in scenario {body.scenario!r} {error}") from None
    if len(found) > 1:
        names = ", ".join(code.short for code in found)
        raise Problem(422, "invalid-request", f"code: {body.code!r} is the beginning of several: {names}")
    with service.database.write() as session:

        def effect() -> Answer:
            row = baselines.choose(session, caller, body.scenario, found[0], body.reason)
            return Answer(status=201, body=_shape(row), location="/api/v1/baselines")

        return once(session, request, body, effect)


@router.delete("/baselines/{scenario}", status_code=204)
def remove_baseline(
    service: ServiceOf, caller: CallerOf, scenario: Id, reason: Annotated[str, Query(max_length=2000)] = ""
) -> None:
    """The scenario has none from now on."""
    with service.database.write() as session:
        if (row := session.get(BaselineRow, scenario)) is None:
            raise not_found("baseline of scenario", scenario)
        baselines.remove(session, caller, row, reason)


@router.get("/trials/{trial_id}/baseline")
def show_beside(service: ServiceOf, trial_id: Id) -> BesideShape:
    """What the trial's times are held against."""
    with service.database.read() as session:
        trial = existing_trial(session, trial_id)
        found = baselines.beside(session, trial.id, trial.scenario)
        return BesideShape(
            code=None if found.code is None else found.code.name,
            baseline=None if found.baseline is None else _shape(found.baseline),
            trials=found.trials,
            medians={fault: dict(times) for fault, times in found.medians.items()},
            why_not=found.why_not,
        )


def _shape(row: BaselineRow) -> BaselineShape:
    return BaselineShape(
        scenario=row.scenario, code=row.code.name, short=row.code.short, reason=row.reason, by=row.by, at=row.at
    )
