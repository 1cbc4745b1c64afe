"""Take a lasting fault back before its time to live is over."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from chaos.errors import ChaosError
from service import audit, halts, store, views
from service.access import CallerOf
from service.callers import Caller
from service.context import Service
from service.idempotency import Answer, once
from service.problems import Problem, not_found
from service.routes.common import IDEMPOTENT, PROBLEMS, Id, ServiceOf, existing_run
from service.shapes import FaultShape, Why
from service.states import FaultState, RunState
from service.tables import FaultRow, Run, Trial

router = APIRouter(tags=["safety"], responses=PROBLEMS)

log = logging.getLogger("phoenix.service")

NO_REASON = Why()


@router.post(
    "/runs/{run_id}/faults/{fault_id}/revert", status_code=202, response_model=FaultShape, openapi_extra=IDEMPOTENT
)
def revert_fault(
    service: ServiceOf, caller: CallerOf, request: Request, run_id: Id, fault_id: Id, body: Why = NO_REASON
) -> Response:
    """Ask the trial to take it back; the fault is REVERTED once it has. The body may be left out."""
    return _revert(service, caller, request, run_id, fault_id, body)


@router.post("/injections/{fault_id}/revert", status_code=202, response_model=FaultShape, openapi_extra=IDEMPOTENT)
def revert_injection(
    service: ServiceOf, caller: CallerOf, request: Request, fault_id: Id, body: Why = NO_REASON
) -> Response:
    """The same by the fault's id alone, among the runs that are running."""
    return _revert(service, caller, request, None, fault_id, body)


def _running_with(session: Session, fault_id: str) -> str:
    """The one running run that has this fault. Raises Problem."""
    query = (
        select(FaultRow.run_id)
        .join(Trial, Trial.id == FaultRow.trial_id)
        .where(FaultRow.id == fault_id, Trial.state == RunState.RUNNING)
    )
    runs = list(session.scalars(query))
    if not runs and session.scalar(select(FaultRow.id).where(FaultRow.id == fault_id).limit(1)) is None:
        raise not_found("fault", fault_id)
    if len(runs) != 1:
        hint = f"several running runs: {', '.join(runs)}; use /runs/RUN/faults/{fault_id}/revert"
        raise Problem(409, "not-active", f"fault {fault_id} belongs to {hint if runs else 'no run that is running'}")
    return runs[0]


def _revert(
    service: Service, caller: Caller, request: Request, run_id: str | None, fault_id: str, body: Why
) -> Response:
    with service.database.write() as session:

        def effect() -> Answer:
            run = existing_run(session, run_id or _running_with(session, fault_id))
            trial = store.shown_trial(session, run.id)
            if (fault := session.get(FaultRow, (trial.id, fault_id))) is None:
                raise not_found("fault", fault_id)
            _refuse_inactive(run, fault)
            halts.ask_to_revert(fault, body.reason)
            audit.record(session, caller, "fault.revert", f"{trial.id}/{fault.id}", reason=body.reason)
            return Answer(status=202, body=views.fault_shape(fault, trial.first_at, None))

        answer = once(session, request, body, effect)
    try:
        service.executor.deliver(run_id)
    except (OSError, ChaosError):
        # It is in the database: the executor hands it over as soon as the disk takes it.
        log.exception("a revert of %s could not be handed over yet", fault_id)
    return answer


def _refuse_inactive(run: Run, fault: FaultRow) -> None:
    if halts.is_active(fault) and run.state == RunState.RUNNING:
        return
    why = {
        FaultState.REQUESTED: "it has not begun yet",
        FaultState.MISSED: "it never began",
        FaultState.REVERTED: "it was taken back already",
        FaultState.INJECTED: "it does not last" if run.state == RunState.RUNNING else f"run {run.id} is {run.state}",
    }[FaultState(fault.state)]
    detail = f"there is nothing to revert of fault {fault.id} ({fault.kind}): {why}"
    raise Problem(409, "not-active", detail, state=fault.state)
