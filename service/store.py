"""Questions to the database and changes of it; every function works in the caller's transaction."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chaos.faults import PlannedFault
from chaos.roster import Roster, WorkerState
from chaos.scenario import Scenario
from service.recoveries import to_event
from service.states import FaultState, RunState
from service.tables import EventRow, FaultRow, RecoveryRow, Run, StepSample, Trial

ROSTER_KINDS = ("worker_spawned", "worker_exited", "spare_parked", "world_formed", "failure_detected")


def now() -> datetime:
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


# --- runs ------------------------------------------------------------------------------------------------------------


def add_run(session: Session, scenario: Scenario) -> Run:
    """Queue a run; the faults that its scenario plans are there at once, so that they can be seen coming."""
    run = Run(
        id=new_id("run"),
        scenario=scenario.name,
        document=scenario.to_json(),
        workload=scenario.workload,
        runtime=scenario.runtime,
        nodes=scenario.cluster.nodes,
        ranks_per_node=scenario.cluster.ranks_per_node,
        spares=scenario.cluster.spares,
        seed=scenario.seed,
        steps=scenario.steps,
        state=RunState.QUEUED,
        created_at=now(),
    )
    session.add(run)
    session.flush()
    for fault in scenario.planned:
        add_fault(session, run.id, fault, live=False)
    return run


def find_run(session: Session, run: str) -> Run | None:
    return session.scalars(select(Run).where(Run.id == run)).one_or_none()


def runs(session: Session, *, state: RunState | None, limit: int, before: int | None) -> list[Run]:
    """Newest first; `before` is the `seq` of the last run of the page before."""
    query = select(Run).order_by(Run.seq.desc()).limit(limit)
    if state is not None:
        query = query.where(Run.state == state)
    if before is not None:
        query = query.where(Run.seq < before)
    return list(session.scalars(query))


def next_queued(session: Session) -> Run | None:
    return session.scalars(select(Run).where(Run.state == RunState.QUEUED).order_by(Run.seq).limit(1)).one_or_none()


def cancel(session: Session, run: Run, reason: str) -> None:
    """A queued run ends here; a running one when its trial has heard of it and ended what it started."""
    if run.cancelled_at is None:
        run.cancelled_at, run.cancel_reason = now(), reason or None
    if run.state == RunState.QUEUED:
        run.state, run.finished_at = RunState.CANCELLED, now()
        run.error = "cancelled before it started" + (f": {reason}" if reason else "")
        for fault in faults(session, run.id):
            fault.state, fault.detail = FaultState.MISSED, run.error


# --- trials ----------------------------------------------------------------------------------------------------------


def add_trial(session: Session, run: Run, trials: Path) -> Trial:
    """The run begins: from here on its one trial decides how it ends."""
    number = session.scalar(select(func.count()).where(Trial.run_id == run.id)) or 0
    name = f"{run.id}-{number + 1}"
    trial = Trial(
        id=name,
        run_id=run.id,
        directory=str(trials / name),
        state=RunState.RUNNING,
        spawned=False,
        started_at=now(),
    )
    session.add(trial)
    run.state, run.started_at = RunState.RUNNING, trial.started_at
    return trial


def trials_of(session: Session, run: str) -> list[Trial]:
    return list(session.scalars(select(Trial).where(Trial.run_id == run).order_by(Trial.started_at, Trial.id)))


def trial_ids(session: Session, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Trials per run, in one query for a whole page."""
    found: dict[str, list[str]] = {run: [] for run in run_ids}
    query = select(Trial.run_id, Trial.id).where(Trial.run_id.in_(run_ids)).order_by(Trial.started_at, Trial.id)
    for run, trial in session.execute(query):
        found[run].append(trial)
    return found


def recovery_counts(session: Session, run_ids: Sequence[str]) -> Counter[str]:
    """Recoveries per run, in one query for a whole page. Two faults may share one; one on a spare has none."""
    query = (
        select(Trial.run_id, func.count(func.distinct(RecoveryRow.generation)))
        .select_from(RecoveryRow)
        .join(Trial, Trial.id == RecoveryRow.trial_id)
        .where(Trial.run_id.in_(run_ids))
        .group_by(Trial.run_id, Trial.id)
    )
    counts = Counter[str]()
    for run, number in session.execute(query):
        counts[run] += number
    return counts


def newest_trial(session: Session, run: str) -> Trial | None:
    trials = trials_of(session, run)
    return trials[-1] if trials else None


def active_trials(session: Session) -> list[Trial]:
    return list(session.scalars(select(Trial).where(Trial.state == RunState.RUNNING).order_by(Trial.started_at)))


def recoveries(session: Session, trial: str) -> list[RecoveryRow]:
    return list(session.scalars(select(RecoveryRow).where(RecoveryRow.trial_id == trial).order_by(RecoveryRow.number)))


def step_rows(session: Session, trial: str, last: int, *, after: int, limit: int) -> Sequence[tuple[object, ...]]:
    """(step, mean loss, longest duration in ns, last commit in monotonic ns, generation) of steps up to `last`.

    A rank that died between committing a step and saying so is missing from that step's samples;
    the job went on from it, so it counts as much as any other.
    """
    query = (
        select(
            StepSample.step,
            func.avg(StepSample.loss),
            func.max(StepSample.duration_ns),
            func.max(StepSample.at),
            func.max(StepSample.generation),
        )
        .where(StepSample.trial_id == trial, StepSample.step > after, StepSample.step <= last)
        .group_by(StepSample.step)
        .order_by(StepSample.step)
        .limit(limit)
    )
    return [tuple(row) for row in session.execute(query)]


def roster(session: Session, trial: str) -> Roster:
    """Who is who in the disturbed part, from the few events that tell it."""
    query = select(EventRow).where(EventRow.trial_id == trial, EventRow.kind.in_(ROSTER_KINDS), EventRow.part == "run")
    members = Roster()
    # Worker ids are ever new, so who exists can come first: a quick worker may speak before it is announced.
    for event in sorted(map(to_event, session.scalars(query)), key=lambda e: (e.kind != "worker_spawned", e.at)):
        members.observe(event)
    return members


# --- events ----------------------------------------------------------------------------------------------------------


def events(session: Session, run: str, *, after: int, limit: int, kinds: Sequence[str] = ()) -> list[EventRow]:
    """Of all parts of the run, in the order in which they came into the database."""
    query = select(EventRow).where(EventRow.run_id == run, EventRow.id > after).order_by(EventRow.id).limit(limit)
    if kinds:
        query = query.where(EventRow.kind.in_(kinds))
    return list(session.scalars(query))


def last_offset(session: Session, run: str) -> int:
    return session.scalar(select(func.max(EventRow.id)).where(EventRow.run_id == run)) or 0


# --- faults ----------------------------------------------------------------------------------------------------------


def add_fault(session: Session, run: str, fault: PlannedFault, *, live: bool) -> FaultRow:
    """A live one still has to be delivered to the trial; those of the scenario it knows."""
    number = session.scalar(select(func.count()).where(FaultRow.run_id == run)) or 0
    row = FaultRow(
        run_id=run,
        id=fault.id,
        seq=number,
        kind=fault.kind,
        target=fault.target.to_json(),
        trigger=fault.trigger.to_json(),
        params=dict(fault.params),
        reason=fault.reason or None,
        live=live,
        delivered=not live,
        state=FaultState.REQUESTED,
        requested_at=now(),
    )
    session.add(row)
    session.flush()
    return row


def faults(session: Session, run: str) -> list[FaultRow]:
    return list(session.scalars(select(FaultRow).where(FaultRow.run_id == run).order_by(FaultRow.seq)))


def undelivered(session: Session, run: str) -> list[FaultRow]:
    return [fault for fault in faults(session, run) if not fault.delivered]


def spares_free(members: Roster, known: Sequence[FaultRow]) -> int:
    """Parked spares that no fault already under way will need.

    A fault that was asked for, or applied and not yet detected, is about to take one.
    """
    states = Counter(worker.state for worker in members.workers.values())
    active = {worker.worker for worker in members.workers.values() if worker.state is WorkerState.ACTIVE}
    claimed = sum(
        not {"spare", "coordinator", "store"} & set(fault.target)
        and (
            (fault.state == FaultState.REQUESTED and "now" in fault.trigger)
            or (fault.state == FaultState.INJECTED and fault.worker in active)
        )
        for fault in known
    )
    return states[WorkerState.SPARE] - claimed


def runs_with_requests(session: Session) -> set[str]:
    """Runs that were asked for something of which their trials may not have heard yet."""
    cancelled = select(Run.id).where(Run.state == RunState.RUNNING, Run.cancelled_at.is_not(None))
    waiting = select(FaultRow.run_id).where(FaultRow.delivered.is_(False))
    return set(session.scalars(cancelled.union(waiting)))


def to_request(fault: FaultRow) -> Mapping[str, object]:
    """The line by which a running trial is asked for this fault."""
    return {
        "fault": fault.id,
        "kind": fault.kind,
        "target": fault.target,
        "trigger": fault.trigger,
        "params": fault.params,
        "reason": fault.reason or "",
    }
