"""Trials, their checks and recoveries, and what to draw of each recovery."""

from __future__ import annotations

from fastapi import APIRouter

from service import store, views
from service.routes.common import PROBLEMS, Id, ServiceOf, existing_run, existing_trial
from service.shapes import TimelineShape, TrialList, TrialShape

router = APIRouter(tags=["trials"], responses=PROBLEMS)


@router.get("/runs/{run_id}/trials")
def list_trials(service: ServiceOf, run_id: Id) -> TrialList:
    with service.database.read() as session:
        existing_run(session, run_id)
        return TrialList(items=[views.trial_shape(session, trial) for trial in store.trials_of(session, run_id)])


@router.get("/trials/{trial_id}")
def get_trial(service: ServiceOf, trial_id: Id) -> TrialShape:
    with service.database.read() as session:
        return views.trial_shape(session, existing_trial(session, trial_id))


@router.get("/trials/{trial_id}/timeline")
def get_timeline(service: ServiceOf, trial_id: Id) -> TimelineShape:
    """Each recovery with its bars: one row for the coordinator (the phases) and one per rank."""
    with service.database.read() as session:
        return views.timeline_shape(session, existing_trial(session, trial_id))
