"""Questions to the database and changes of it; every function works in the caller's transaction."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chaos.faults import PlannedFault
from chaos.kinds import fault_kind
from chaos.roster import Roster, WorkerState
from chaos.scenario import Scenario
from service.recoveries import to_event
from service.states import FaultState, RunState
from service.tables import EventRow, FaultRow, RecoveryRow, Run, StepSample, Trial

ROSTER_KINDS = ("worker_spawned", "worker_exited", "spare_parked", "world_formed", "failure_detected")

MOST_TRIALS = 999
# Positions of trials that a run has at most, so that those of the next run come after them.
POSITIONS = 1000


def now() -> datetime:
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


# --- runs ------------------------------------------------------------------------------------------------------------


def add_run(
    session: Session,
    plan: Sequence[Scenario],
    *,
    suite: str | None = None,
    revision: str | None = None,
    schedule: str | None = None,
    by: str | None = None,
    reason: str = "",
) -> Run:
    """Queue a run of these trials, one after another. The faults that they plan can be seen coming from now on."""
    assert 1 <= len(plan) <= MOST_TRIALS
    run = Run(
        id=new_id("run"),
        suite=suite,
        schedule_id=schedule,
        revision=revision,
        seeded=False,
        state=RunState.QUEUED,
        reason=reason or None,
        requested_by=by,
        created_at=now(),
        **described(plan[0]),
    )
    session.add(run)
    session.flush()
    for number, scenario in enumerate(plan, start=1):
        trial = Trial(
            id=f"{run.id}-{number}",
            run_id=run.id,
            number=number,
            position=run.seq * POSITIONS + number,
            scenario=scenario.name,
            document=scenario.to_json(),
            runtime=scenario.runtime,
            seed=scenario.seed,
            steps=scenario.steps,
            state=RunState.QUEUED,
            spawned=False,
        )
        session.add(trial)
        session.flush()
        for fault in scenario.planned:
            add_fault(session, trial, fault, live=False, by=by)
    return run


def described(scenario: Scenario) -> dict[str, Any]:
    """The columns of a run that tell what runs."""
    return {
        "scenario": scenario.name,
        "document": scenario.to_json(),
        "workload": scenario.workload,
        "runtime": scenario.runtime,
        "nodes": scenario.cluster.nodes,
        "ranks_per_node": scenario.cluster.ranks_per_node,
        "spares": scenario.cluster.spares,
        "seed": scenario.seed,
        "steps": scenario.steps,
    }


def find_run(session: Session, run: str) -> Run | None:
    return session.scalars(select(Run).where(Run.id == run)).one_or_none()


# --- trials ----------------------------------------------------------------------------------------------------------


def begin_trial(session: Session, run: Run, trial: Trial, trials: Path, service: str) -> None:
    """From here on its process decides how it ends; the run shows what this trial is."""
    trial.state, trial.started_at, trial.service_id = RunState.RUNNING, now(), service
    trial.directory = str(trials / trial.id)
    run.state, run.service_id, run.started_at = RunState.RUNNING, service, run.started_at or trial.started_at
    run.part = run.step = None
    for name, value in described(Scenario.from_json(trial.document)).items():
        setattr(run, name, value)


def trials_of(session: Session, run: str) -> list[Trial]:
    return list(session.scalars(select(Trial).where(Trial.run_id == run).order_by(Trial.number)))


def trial_ids(session: Session, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Trials per run, in one query for a whole page."""
    found: dict[str, list[str]] = {run: [] for run in run_ids}
    query = select(Trial.run_id, Trial.id).where(Trial.run_id.in_(run_ids)).order_by(Trial.position)
    for run, trial in session.execute(query):
        found[run].append(trial)
    return found


def trials_done(session: Session, run_ids: Sequence[str]) -> Counter[str]:
    """How many trials of each run have begun and ended: one that was cancelled before it began was not done."""
    waiting = (RunState.QUEUED, RunState.RUNNING)
    query = (
        select(Trial.run_id, func.count())
        .where(Trial.run_id.in_(run_ids), Trial.state.not_in(waiting), Trial.started_at.is_not(None))
        .group_by(Trial.run_id)
    )
    return Counter({str(run): number for run, number in session.execute(query)})


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
    """The one that runs now, else the last that did; None before the first."""
    query = select(Trial).where(Trial.run_id == run, Trial.started_at.is_not(None))
    return session.scalars(query.order_by(Trial.number.desc()).limit(1)).one_or_none()


def shown_trial(session: Session, run: str) -> Trial:
    """As `newest_trial`, but before the first has begun that one."""
    first = select(Trial).where(Trial.run_id == run).order_by(Trial.number).limit(1)
    return newest_trial(session, run) or session.scalars(first).one()


def running_trials(session: Session, service: str | None = None) -> list[Trial]:
    """Those that run; of one service, or of all."""
    query = select(Trial).where(Trial.state == RunState.RUNNING).order_by(Trial.position)
    return list(session.scalars(query if service is None else query.where(Trial.service_id == service)))


def recoveries(session: Session, trial: str) -> list[RecoveryRow]:
    return recoveries_of(session, [trial])[trial]


def recoveries_of(session: Session, trials: Sequence[str]) -> dict[str, list[RecoveryRow]]:
    """Per trial, in one query for all of them."""
    found: dict[str, list[RecoveryRow]] = {trial: [] for trial in trials}
    query = select(RecoveryRow).where(RecoveryRow.trial_id.in_(trials)).order_by(RecoveryRow.number)
    for row in session.scalars(query):
        found[row.trial_id].append(row)
    return found


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


def add_fault(session: Session, trial: Trial, fault: PlannedFault, *, live: bool, by: str | None = None) -> FaultRow:
    """A live one still has to be delivered to the trial; those of the scenario it knows."""
    number = session.scalar(select(func.count()).where(FaultRow.trial_id == trial.id)) or 0
    row = FaultRow(
        trial_id=trial.id,
        run_id=trial.run_id,
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
        requested_by=by,
    )
    session.add(row)
    session.flush()
    return row


def faults(session: Session, trial: str) -> list[FaultRow]:
    return list(session.scalars(select(FaultRow).where(FaultRow.trial_id == trial).order_by(FaultRow.seq)))


def undelivered(session: Session, trial: str) -> list[FaultRow]:
    query = select(FaultRow).where(FaultRow.trial_id == trial, FaultRow.delivered.is_(False))
    return list(session.scalars(query.order_by(FaultRow.seq)))


def spares_free(members: Roster, known: Sequence[FaultRow]) -> int:
    """Parked spares that no fault already under way will need.

    A fault that was asked for, or applied and not yet detected, is about to take one.
    """
    states = Counter(worker.state for worker in members.workers.values())
    active = {worker.worker for worker in members.workers.values() if worker.state is WorkerState.ACTIVE}
    claimed = sum(
        not {"spare", "coordinator", "store"} & set(fault.target)
        and not fault_kind(fault.kind).quiet
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
