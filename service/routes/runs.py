"""Runs: submit, list, look at, cancel."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from chaos.runtimes import runtime_for, with_extra
from chaos.scenario import Scenario
from service import catalog, store, views
from service.context import Service
from service.idempotency import Answer, once
from service.problems import Problem
from service.routes.common import IDEMPOTENT, PROBLEMS, Id, ServiceOf, existing_run
from service.shapes import Cancel, NewRun, RunPage, RunShape, StepPage, WorkerList
from service.states import RunState

router = APIRouter(tags=["runs"], responses=PROBLEMS)

NO_REASON = Cancel()


@router.post("/runs", status_code=202, response_model=RunShape, openapi_extra=IDEMPOTENT)
def submit_run(service: ServiceOf, request: Request, body: NewRun) -> Response:
    """Queue a run of a named scenario, or of one given in full; it starts when its turn comes."""
    with service.database.write() as session:

        def effect() -> Answer:
            run = store.add_run(session, _scenario(service, body))
            return Answer(status=202, body=views.one_run(session, run), location=f"/api/v1/runs/{run.id}")

        return once(session, request, body, effect)


@router.get("/runs")
def list_runs(
    service: ServiceOf,
    state: RunState | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(pattern=r"^\d{1,18}$", description="`next` of the page before")] = None,
) -> RunPage:
    """Newest first."""
    with service.database.read() as session:
        found = store.runs(session, state=state, limit=limit, before=int(cursor) if cursor else None)
        trials, counts = store.trial_ids(session, ids := [run.id for run in found]), store.recovery_counts(session, ids)
        items = [views.run_shape(run, trials[run.id], counts[run.id]) for run in found]
        return RunPage(items=items, next=str(found[-1].seq) if len(found) == limit else None)


@router.get("/runs/{run_id}")
def get_run(service: ServiceOf, run_id: Id) -> RunShape:
    with service.database.read() as session:
        return views.one_run(session, existing_run(session, run_id))


@router.post("/runs/{run_id}/cancel", status_code=202, response_model=RunShape, openapi_extra=IDEMPOTENT)
def cancel_run(service: ServiceOf, request: Request, run_id: Id, body: Cancel = NO_REASON) -> Response:
    """A queued run ends at once; a running one when its trial has ended what it started. The body may be left out."""
    with service.database.write() as session:
        run = existing_run(session, run_id)

        def effect() -> Answer:
            if RunState(run.state).ended:
                raise Problem(409, "run-ended", f"run {run.id} is {run.state} already: there is nothing to cancel")
            store.cancel(session, run, body.reason)
            return Answer(status=202, body=views.one_run(session, run))

        answer = once(session, request, body, effect)
    service.executor.deliver(run_id)
    return answer


@router.get("/runs/{run_id}/steps")
def list_steps(
    service: ServiceOf,
    run_id: Id,
    after: Annotated[int, Query(ge=-1, lt=2**31)] = -1,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> StepPage:
    """Steps of the disturbed part that every rank has committed, in order."""
    with service.database.read() as session:
        return views.steps_shape(session, existing_run(session, run_id), after=after, limit=limit)


@router.get("/runs/{run_id}/workers")
def list_workers(service: ServiceOf, run_id: Id) -> WorkerList:
    """Every worker that the run ever had, and which rank it holds now."""
    with service.database.read() as session:
        existing_run(session, run_id)
        trial = store.newest_trial(session, run_id)
        if trial is None:
            return WorkerList(items=[], generation=None)
        return views.workers_shape(store.roster(session, trial.id), trial.first_at or 0)


def _scenario(service: Service, body: NewRun) -> Scenario:
    if (body.scenario is None) == (body.scenario_name is None):
        raise Problem(422, "invalid-request", "give either scenario_name or scenario")
    if body.scenario_name is not None:
        scenario = catalog.scenario_named(body.scenario_name)
    else:
        scenario = Scenario.from_json(body.scenario)
    catalog.refuse_paths(scenario, service.settings.allowed_files)
    runtime_for(scenario, with_extra(service.settings.extra_runtimes))
    return scenario if body.seed is None else replace(scenario, seed=body.seed)
