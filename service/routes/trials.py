"""Trials, their checks and recoveries, and what to draw of each recovery."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from chaos.verdict import Verdict
from service import listing, store, views
from service.paging import page
from service.patterns import COMMIT
from service.routes.common import PROBLEMS, Cursor, Id, Limit, ServiceOf, existing_run, existing_trial
from service.shapes import TimelineShape, TrialList, TrialPage, TrialShape
from service.states import RunState
from service.tables import Trial

router = APIRouter(tags=["trials"], responses=PROBLEMS)


@router.get("/runs/{run_id}/trials")
def list_trials(service: ServiceOf, run_id: Id) -> TrialList:
    """In their order, each with its checks and recoveries."""
    with service.database.read() as session:
        existing_run(session, run_id)
        return TrialList(items=views.trial_shapes(session, store.trials_of(session, run_id)))


@router.get("/trials")
def list_all_trials(
    service: ServiceOf,
    scenario: Annotated[str | None, Query(max_length=200)] = None,
    verdict: Verdict | None = None,
    state: RunState | None = None,
    commit: Annotated[str | None, Query(pattern=COMMIT, description="Its first digits")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> TrialPage:
    """Of all runs, newest first, without their recoveries."""
    with service.database.read() as session:
        query = listing.all_trials(scenario=scenario, verdict=verdict, state=state, commit=commit)
        found, following = page(session, query, (Trial.position,), limit=limit, cursor=cursor, newest_first=True)
        return TrialPage(items=[views.trial_summary(trial) for trial in found], next=following)


@router.get("/trials/{trial_id}")
def get_trial(service: ServiceOf, trial_id: Id) -> TrialShape:
    """With its checks, recoveries and the directory that holds all of it."""
    with service.database.read() as session:
        return views.trial_shapes(session, [existing_trial(session, trial_id)])[0]


@router.get("/trials/{trial_id}/timeline")
def get_timeline(service: ServiceOf, trial_id: Id) -> TimelineShape:
    """Each recovery with its bars: one row for the coordinator (the phases) and one per rank."""
    with service.database.read() as session:
        return views.timeline_shape(session, existing_trial(session, trial_id))
