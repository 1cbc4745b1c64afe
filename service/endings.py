"""How trials and runs end, and whom that is told; every end goes through here."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session

from chaos.verdict import Verdict, worst
from service import store, views, webhooks
from service.control_tables import Schedule
from service.states import FaultState, RunState, state_of_ended_run
from service.tables import FaultRow, Run, Trial


def cancel(session: Session, run: Run, reason: str) -> None:
    """Trials that have not begun end here; the one that runs when it has heard of it and ended what it started."""
    if run.cancelled_at is None:
        run.cancelled_at, run.cancel_reason = store.now(), reason or None
    error = "cancelled before it started" + (f": {reason}" if reason else "")
    for trial in store.trials_of(session, run.id):
        if trial.state == RunState.QUEUED:
            end_trial(session, trial, RunState.CANCELLED, None, error)
    end_run_if_over(session, run)


def end_trial(session: Session, trial: Trial, state: RunState, verdict: Verdict | None, error: str | None) -> None:
    """It ended so; what it was still to do to itself never comes."""
    if trial.started_at is not None:
        trial.verdict = verdict or Verdict.UNKNOWN
    trial.state, trial.error, trial.finished_at, trial.spawned = state, error, store.now(), True
    missed = (FaultRow.trial_id == trial.id, FaultRow.state == FaultState.REQUESTED)
    detail = "the run ended before this fault was due" if trial.started_at else error
    session.execute(update(FaultRow).where(*missed).values(state=FaultState.MISSED, detail=detail))
    session.execute(update(FaultRow).where(FaultRow.trial_id == trial.id).values(delivered=True))


def end_run_if_over(session: Session, run: Run, *, tell: bool = True) -> bool:
    """With the last of its trials a run ends: as the worst of them did. `tell`: it happens now, and is news."""
    session.flush()
    trials = store.trials_of(session, run.id)
    states = [RunState(trial.state) for trial in trials]
    if not all(state.ended for state in states):
        return False
    run.state = state_of_ended_run(states)
    run.finished_at = store.now()
    if any(trial.started_at for trial in trials):
        run.verdict = worst(Verdict(trial.verdict or Verdict.UNKNOWN) for trial in trials)
    failed = next((trial for trial in trials if trial.error), None)
    if failed is not None:
        run.error = failed.error if len(trials) == 1 else f"trial {failed.number} of {len(trials)}: {failed.error}"
    session.flush()
    if tell:
        _tell(session, run)
    return True


def _tell(session: Session, run: Run) -> None:
    """A run of a schedule that is compared with another is told of once that was done (`service.clockwork`)."""
    schedule = session.get(Schedule, run.schedule_id) if run.schedule_id is not None else None
    if schedule is None or schedule.base is None:
        tell_of_run(session, run, schedule, None)


def tell_of_run(session: Session, run: Run, schedule: Schedule | None, comparison: dict[str, object] | None) -> None:
    document = views.one_run(session, run).model_dump(mode="json")
    told = {"run": document, "schedule": schedule.name if schedule else None, "comparison": comparison}
    also = schedule.webhook_id if schedule else None
    webhooks.tell(session, "run.ended", told, also=also)
    if run.verdict != Verdict.PASS:
        webhooks.tell(session, "run.failed", told)
