"""Faults of a run: those of its scenario, and those that are asked for while it runs."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from chaos.errors import ChaosError
from chaos.expansion import single
from chaos.faults import Coordinator, PlannedFault, Spare, Store
from chaos.foresight import foresee
from chaos.kinds import fault_kind
from chaos.record import TrialDirectory
from chaos.roster import Roster
from chaos.scenario import Cluster
from chaos.triggers import AtStep, Now, OnPhase
from chaos.workloads import workload
from service import audit, halts, store, views
from service.access import CallerOf
from service.callers import Caller
from service.context import Service
from service.idempotency import Answer, once
from service.problems import Problem
from service.routes.common import IDEMPOTENT, PROBLEMS, Id, OneTrial, ServiceOf, chosen_trial, existing_run
from service.shapes import DryRun, FaultList, FaultShape, NewFault
from service.states import RunState
from service.tables import Run, Trial

router = APIRouter(tags=["faults"], responses=PROBLEMS)

log = logging.getLogger("phoenix.service")


@router.get("/runs/{run_id}/faults")
def list_faults(service: ServiceOf, run_id: Id, trial: OneTrial = None) -> FaultList:
    """Of one trial (the newest, unless `trial` names another): planned and asked for, each with its receipt."""
    with service.database.read() as session:
        chosen = chosen_trial(session, existing_run(session, run_id), trial)
        return FaultList(items=views.faults_shape(session, chosen))


@router.post(
    "/runs/{run_id}/faults",
    status_code=202,
    response_model=FaultShape,
    responses={200: {"model": DryRun, "description": "What the fault would do (`dry_run`)."}},
    openapi_extra=IDEMPOTENT,
)
def request_fault(service: ServiceOf, caller: CallerOf, request: Request, run_id: Id, body: NewFault) -> Response:
    """Hit a rank or a spare of a running run. With `dry_run` nothing happens but the answer."""
    with service.database.write() as session:
        run = existing_run(session, run_id)
        answer = once(session, request, body, lambda: _effect(service, session, run, caller, body))
    if not body.dry_run:
        try:
            service.executor.deliver(run_id)
        except (OSError, ChaosError):
            # It is in the database: the executor hands it over as soon as the disk takes it.
            log.exception("a fault for %s could not be handed over yet", run_id)
    return answer


def _effect(service: Service, session: Session, run: Run, caller: Caller, body: NewFault) -> Answer:
    fault = single(PlannedFault.from_json(body.model_dump(exclude={"dry_run"}), id=store.new_id("fault")))
    Cluster(**run.document.get("cluster", {})).check(fault)
    if trouble := service.host.trouble(fault.kind):
        raise Problem(422, "unsupported-fault", trouble)
    fault.check_phases(run.workload, workload(run.workload).phases)
    trial = _running(session, run)
    halts.refuse(session)
    members = store.roster(session, trial.id)
    _refuse_past(run, fault)
    _refuse_without_spare(session, run, trial, fault, members)
    if body.dry_run:
        document = fault.to_json()
        would = asdict(foresee(fault, members))
        parts = {name: document[name] for name in ("kind", "target", "trigger", "params")}
        ttl_s = fault.params.get("ttl_s") if fault_kind(fault.kind).lasting else None
        return Answer(status=200, body=DryRun.model_validate({**parts, "ttl_s": ttl_s, "would": would}))
    row = store.add_fault(session, trial, fault, live=True, by=caller.name)
    what = {"kind": fault.kind, "target": row.target, "trigger": row.trigger, "params": row.params}
    audit.record(session, caller, "fault.request", f"{trial.id}/{row.id}", reason=body.reason, detail=what)
    return Answer(
        status=202, body=views.fault_shape(row, trial.first_at, None), location=f"/api/v1/runs/{run.id}/faults"
    )


def _running(session: Session, run: Run) -> Trial:
    trial = store.newest_trial(session, run.id)
    if run.state != RunState.RUNNING or trial is None or trial.state != RunState.RUNNING:
        detail = f"run {run.id} is {run.state}: a fault needs a running run"
        raise Problem(409, "run-not-running", detail, state=run.state)
    if run.cancelled_at is not None:
        raise Problem(409, "run-not-running", f"run {run.id} is being cancelled")
    if TrialDirectory(Path(str(trial.directory))).result_file.exists():
        raise Problem(409, "run-not-running", f"run {run.id} has just ended; no fault can hit it any more")
    if run.part not in (None, "run"):
        detail = f"run {run.id} is past its disturbed part (now: {run.part}); no fault can hit it any more"
        raise Problem(409, "run-not-running", detail, part=run.part)
    return trial


def _refuse_past(run: Run, fault: PlannedFault) -> None:
    trigger = fault.trigger
    step = trigger.at_step if isinstance(trigger, AtStep) else trigger.step if isinstance(trigger, OnPhase) else None
    if step is None:
        return
    if step >= run.steps:
        detail = f"step {step} never comes: the steps of run {run.id} are 0..{run.steps - 1}"
        raise Problem(422, "invalid-fault", detail)
    if run.step is not None and step <= run.step:
        raise Problem(409, "step-passed", f"step {step} is over: every rank has committed step {run.step}")


def _refuse_without_spare(session: Session, run: Run, trial: Trial, fault: PlannedFault, members: Roster) -> None:
    """Without a spare the job could not go on. What a later trigger will find cannot be known now."""
    if isinstance(fault.target, Coordinator | Store) or fault_kind(fault.kind).quiet:
        return
    if not isinstance(fault.target, Spare) and run.spares == 0:
        detail = f"run {run.id} has no spare, so it could not recover; start one with cluster.spares of 1 or more"
        raise Problem(409, "no-free-spare", detail)
    if not isinstance(fault.trigger, Now) or members.generation is None:
        return
    if store.spares_free(members, store.faults(session, trial.id)) < 1:
        detail = "no spare is free: each is starting, or another fault needs it; try again when one is parked"
        raise Problem(409, "no-free-spare", detail)
