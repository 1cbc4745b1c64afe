"""Rows of the database as the shapes of the REST API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from chaos.kinds import FAULT_KINDS
from chaos.reading import recoveries as recoveries_of
from chaos.roster import Roster, WorkerState
from chaos.verdict import Verdict
from service import shapes, store, waterfall
from service.recoveries import relevant_events
from service.states import FaultState, RunState
from service.tables import EventRow, FaultRow, Run, Trial


def run_shape(run: Run, trials: Sequence[str], recoveries: int, done: int) -> shapes.RunShape:
    return shapes.RunShape(
        id=run.id,
        scenario=run.scenario,
        workload=run.workload,
        runtime=run.runtime,
        cluster=shapes.Cluster(nodes=run.nodes, ranks_per_node=run.ranks_per_node, spares=run.spares),
        seed=run.seed,
        steps=run.steps,
        state=RunState(run.state),
        verdict=_verdict(run.verdict),
        part=run.part,
        step=run.step,
        error=run.error,
        commit=run.commit,
        dirty=run.dirty,
        created_at=run.created_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        trials=list(trials),
        recoveries=recoveries,
        reason=run.reason,
        requested_by=run.requested_by,
        suite=run.suite,
        schedule=run.schedule_id,
        service=run.service_id,
        progress=shapes.Progress(done=done, total=len(trials)),
        revision=run.revision,
        seeded=run.seeded,
        archived=run.archived_at is not None,
    )


def run_shapes(session: Session, runs: Sequence[Run]) -> list[shapes.RunShape]:
    """In three queries more, however many they are."""
    ids = [run.id for run in runs]
    trials, counts = store.trial_ids(session, ids), store.recovery_counts(session, ids)
    done = store.trials_done(session, ids)
    return [run_shape(run, trials[run.id], counts[run.id], done[run.id]) for run in runs]


def one_run(session: Session, run: Run) -> shapes.RunShape:
    return run_shapes(session, [run])[0]


def trial_summary(trial: Trial) -> shapes.TrialSummary:
    return shapes.TrialSummary(
        id=trial.id,
        run=trial.run_id,
        number=trial.number,
        scenario=trial.scenario,
        runtime=trial.runtime,
        seed=trial.seed,
        steps=trial.steps,
        commit=trial.commit,
        dirty=trial.dirty,
        service=trial.service_id,
        state=RunState(trial.state),
        verdict=_verdict(trial.verdict),
        checks=trial.checks or {},
        error=trial.error,
        directory=trial.directory,
        started_at=trial.started_at,
        finished_at=trial.finished_at,
    )


def trial_shapes(session: Session, trials: Sequence[Trial]) -> list[shapes.TrialShape]:
    """In one query more, however many they are."""
    found = store.recoveries_of(session, [trial.id for trial in trials])
    return [
        shapes.TrialShape(
            **dict(trial_summary(trial)), recoveries=[shapes.Recovery(**row.document) for row in found[trial.id]]
        )
        for trial in trials
    ]


def timeline_shape(session: Session, trial: Trial) -> shapes.TimelineShape:
    """The stored recoveries with what to draw; one that has no generation yet has no bars either."""
    events = relevant_events(session, trial.id)
    computed = {recovery.generation: recovery for recovery in recoveries_of(events)}
    first = trial.first_at or 0
    drawn = []
    for row in store.recoveries(session, trial.id):
        recovery = computed.get(row.generation) if row.generation is not None else None
        injected = next(
            (e.at for e in events if e.kind == "fault_injected" and e.data.get("fault") == row.fault_id), None
        )
        started = recovery.started_ns if recovery else injected if injected is not None else first
        ended = max(recovery.ends.values(), default=None) if recovery and recovery.complete else None
        drawn.append(
            shapes.RecoveryTimelineShape(
                **row.document,
                started_s=(started - first) / 1e9,
                ended_s=None if ended is None else (ended - first) / 1e9,
                bars=waterfall.bars(events, recovery, first) if recovery else [],
                instants=waterfall.instants(events, recovery, first) if recovery else [],
            )
        )
    return shapes.TimelineShape(trial=trial.id, run=trial.run_id, recoveries=drawn)


def steps_shape(session: Session, run: Run, trial: Trial, *, after: int, limit: int) -> shapes.StepPage:
    """Of an earlier trial all steps: it is over, so that every one was committed that is there."""
    present = store.shown_trial(session, run.id).id == trial.id
    last = (-1 if run.step is None else run.step) if present else trial.steps
    rows: Sequence[Any] = store.step_rows(session, trial.id, last, after=after, limit=limit)
    first = trial.first_at or 0
    items = [
        shapes.StepShape(
            step=step,
            loss=loss,
            duration_s=None if duration is None else duration / 1e9,
            at_s=(at - first) / 1e9,
            generation=generation,
        )
        for step, loss, duration, at, generation in rows
    ]
    return shapes.StepPage(items=items, next=items[-1].step if len(items) == limit else None)


def workers_shape(members: Roster, first_at: int) -> shapes.WorkerList:
    """A rank is shown beside its present holder only."""
    items = [
        shapes.WorkerShape(
            worker=worker.worker,
            node=worker.node,
            pid=worker.pid,
            rank=worker.rank if worker.state is WorkerState.ACTIVE else None,
            state=worker.state.value,
            since_s=max(0.0, (worker.since - first_at) / 1e9),
        )
        for worker in members.workers.values()
    ]
    return shapes.WorkerList(items=items, generation=members.generation)


def fault_shape(fault: FaultRow, first_at: int | None, recovery: Mapping[str, Any] | None) -> shapes.FaultShape:
    injected = None
    if fault.injected_at is not None:
        injected = shapes.Injected(worker=fault.worker, rank=fault.rank, pid=fault.pid, fidelity=fault.fidelity)
    at_s = None
    if fault.injected_at is not None and first_at is not None:
        at_s = (fault.injected_at - first_at) / 1e9
    kind = FAULT_KINDS.get(fault.kind)
    ttl_s = fault.params.get("ttl_s") if kind is not None and kind.lasting else None
    reverted_s = None
    if fault.reverted_at is not None and first_at is not None:
        reverted_s = (fault.reverted_at - first_at) / 1e9
    return shapes.FaultShape(
        id=fault.id,
        run=fault.run_id,
        trial=fault.trial_id,
        kind=fault.kind,
        target=fault.target,
        trigger=fault.trigger,
        params=fault.params,
        reason=fault.reason,
        state=FaultState(fault.state),
        detail=fault.detail,
        requested_at=fault.requested_at,
        injected_at_s=at_s,
        injected=injected,
        ttl_s=ttl_s,
        expires_at_s=at_s + ttl_s if at_s is not None and ttl_s is not None else None,
        revert_requested=fault.revert_requested_at is not None,
        reverted_at_s=reverted_s,
        requested_by=fault.requested_by,
        recovery=shapes.Recovery(**recovery) if recovery is not None else None,
    )


def faults_shape(session: Session, trial: Trial) -> list[shapes.FaultShape]:
    found = {row.fault_id: row.document for row in store.recoveries(session, trial.id) if row.fault_id}
    return [fault_shape(fault, trial.first_at, found.get(fault.id)) for fault in store.faults(session, trial.id)]


def event_shape(row: EventRow, first_at: int | None) -> shapes.EventShape:
    return shapes.EventShape(
        offset=row.id,
        trial=row.trial_id,
        part=row.part,
        kind=row.kind,
        at=row.at,
        at_s=None if first_at is None else (row.at - first_at) / 1e9,
        host=row.host,
        boot=row.boot,
        node=row.node,
        worker=row.worker,
        generation=row.generation,
        rank=row.rank,
        step=row.step,
        data=row.data,
    )


def _verdict(stored: str | None) -> Verdict | None:
    return None if stored is None else Verdict(stored)
