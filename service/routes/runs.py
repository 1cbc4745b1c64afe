"""Runs: submit, list, look at, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from chaos.verdict import Verdict
from service import audit, endings, listing, planning, store, views
from service.access import CallerOf
from service.executor import LOG_NAME
from service.files import last_lines
from service.idempotency import Answer, once
from service.paging import page
from service.patterns import COMMIT
from service.problems import Problem
from service.routes.common import (
    IDEMPOTENT,
    PROBLEMS,
    Cursor,
    Id,
    Limit,
    OneTrial,
    ServiceOf,
    chosen_trial,
    existing_run,
)
from service.routes.history import Branch, no_such_branch
from service.shapes import Cancel, LogLines, Moment, NewRun, RunPage, RunShape, StepPage, Why, WorkerList
from service.states import RunState
from service.tables import Run

router = APIRouter(tags=["runs"], responses=PROBLEMS)

NO_REASON = Cancel()
NO_WHY = Why()

Name = Annotated[str | None, Query(max_length=200)]


@router.post("/runs", status_code=202, response_model=RunShape, openapi_extra=IDEMPOTENT)
def submit_run(service: ServiceOf, caller: CallerOf, request: Request, body: NewRun) -> Response:
    """Queue a run of a named scenario, or of one given in full; it starts when its turn comes."""
    plan = planning.plan(service.settings, body)  # may take seconds, for which nobody shall wait who writes
    with service.database.write() as session:

        def effect() -> Answer:
            run = store.add_run(
                session, plan, suite=body.suite, revision=body.revision, by=caller.name, reason=body.reason
            )
            detail = {"scenario": plan[0].name, "suite": body.suite, "trials": len(plan)}
            audit.record(session, caller, "run.submit", run.id, reason=body.reason, detail=detail)
            return Answer(status=202, body=views.one_run(session, run), location=f"/api/v1/runs/{run.id}")

        return once(session, request, body, effect)


@router.get("/runs")
def list_runs(
    service: ServiceOf,
    state: Annotated[list[RunState] | None, Query(description="Only runs in one of these states")] = None,
    verdict: Verdict | None = None,
    scenario: Name = None,
    suite: Name = None,
    schedule: Name = None,
    workload: Name = None,
    commit: Annotated[str | None, Query(pattern=COMMIT, description="Its first digits")] = None,
    branch: Branch = None,
    host: Annotated[str | None, Query(max_length=100, description="Run by the service of this host")] = None,
    since: Moment | None = None,
    until: Moment | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RunPage:
    """Newest first. `since` and `until` are when they were submitted."""
    with no_such_branch():
        commits = None if branch is None else service.known.branches.line(branch)
    which = listing.RunFilter(
        states=state or (),
        verdict=verdict,
        scenario=scenario,
        suite=suite,
        schedule=schedule,
        workload=workload,
        commit=commit,
        commits=commits,
        host=host,
        since=since,
        until=until,
    )
    with service.database.read() as session:
        query = listing.runs(which)
        found, following = page(session, query, (Run.seq,), limit=limit, cursor=cursor, newest_first=True)
        return RunPage(items=views.run_shapes(session, found), next=following)


@router.get("/runs/{run_id}")
def get_run(service: ServiceOf, run_id: Id) -> RunShape:
    """Where it stands and, at its end, the verdict."""
    with service.database.read() as session:
        return views.one_run(session, existing_run(session, run_id))


@router.post("/runs/{run_id}/cancel", status_code=202, response_model=RunShape, openapi_extra=IDEMPOTENT)
def cancel_run(
    service: ServiceOf, caller: CallerOf, request: Request, run_id: Id, body: Cancel = NO_REASON
) -> Response:
    """A queued run ends at once; a running one when its trial has ended what it started. The body may be left out."""
    with service.database.write() as session:
        run = existing_run(session, run_id)

        def effect() -> Answer:
            if RunState(run.state).ended:
                raise Problem(409, "run-ended", f"run {run.id} is {run.state} already: there is nothing to cancel")
            endings.cancel(session, run, body.reason)
            audit.record(session, caller, "run.cancel", run.id, reason=body.reason)
            return Answer(status=202, body=views.one_run(session, run))

        answer = once(session, request, body, effect)
    service.executor.deliver(run_id)
    return answer


@router.post("/runs/{run_id}/again", status_code=202, response_model=RunShape, openapi_extra=IDEMPOTENT)
def run_again(service: ServiceOf, caller: CallerOf, request: Request, run_id: Id, body: Why = NO_WHY) -> Response:
    """Queue the same trials once more, with their seeds, by the code that is there now. The body may be left out."""
    with service.database.read() as session:
        run = existing_run(session, run_id)
        documents = [trial.document for trial in store.trials_of(session, run.id)]
    plan = planning.again(service.settings, documents)
    with service.database.write() as session:

        def effect() -> Answer:
            reason = body.reason or f"{run.id} once more"
            new = store.add_run(session, plan, suite=run.suite, revision=run.revision, by=caller.name, reason=reason)
            audit.record(session, caller, "run.submit", new.id, reason=reason, detail={"again": run.id})
            return Answer(status=202, body=views.one_run(session, new), location=f"/api/v1/runs/{new.id}")

        return once(session, request, body, effect)


@router.get("/runs/{run_id}/steps")
def list_steps(
    service: ServiceOf,
    run_id: Id,
    trial: OneTrial = None,
    after: Annotated[int, Query(ge=-1, lt=2**31)] = -1,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> StepPage:
    """Steps of the disturbed part that every rank has committed, in order."""
    with service.database.read() as session:
        run = existing_run(session, run_id)
        return views.steps_shape(session, run, chosen_trial(session, run, trial), after=after, limit=limit)


@router.get("/runs/{run_id}/workers")
def list_workers(service: ServiceOf, run_id: Id, trial: OneTrial = None) -> WorkerList:
    """Every worker that the trial ever had, and which rank it holds now."""
    with service.database.read() as session:
        chosen = chosen_trial(session, existing_run(session, run_id), trial)
        return views.workers_shape(store.roster(session, chosen.id), chosen.first_at or 0)


@router.get("/runs/{run_id}/log")
def get_log(
    service: ServiceOf,
    run_id: Id,
    trial: OneTrial = None,
    tail: Annotated[int, Query(ge=1, le=1000, description="At most so many lines")] = 200,
) -> LogLines:
    """The end of what the trial's process printed; nothing where another service ran it, or its directory is gone."""
    with service.database.read() as session:
        chosen = chosen_trial(session, existing_run(session, run_id), trial)
    ours = chosen.directory is not None and chosen.service_id in (None, service.executor.service)
    lines = last_lines(Path(str(chosen.directory)) / LOG_NAME) if ours else []
    return LogLines(trial=chosen.id, lines=lines[-tail:])
