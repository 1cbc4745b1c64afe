"""Removes what is old: the events and samples of runs that ended long ago, and what only helped to get there.

Runs, trials, faults, recoveries and verdicts stay, as do the specification and the result in each trial directory: what
is compared over years is small. What takes room is the record of each step.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service import store
from service.control_tables import Delivery, LoginSession
from service.database import Database
from service.states import RunState
from service.tables import EventRow, IdempotencyKey, ReadOffset, Run, StepSample, Trial
from service.webhooks import PENDING

# Runs that are archived in one transaction, for which the others wait.
BATCH = 5
KEYS_LAST = timedelta(days=7)
MESSAGES_LAST = timedelta(days=90)
PARTS = ("run", "twin")


def due(session: Session, keep: timedelta, *, limit: int) -> list[Run]:
    """Runs that ended longer ago than `keep` and still have their events."""
    ended = [state for state in RunState if state.ended]
    query = select(Run).where(Run.state.in_(ended), Run.archived_at.is_(None), Run.finished_at < store.now() - keep)
    return list(session.scalars(query.order_by(Run.seq).limit(limit)))


def archive(database: Database, keep: timedelta) -> list[str]:
    """Archive what is due, a few runs at a time; returns which runs these were."""
    archived: list[str] = []
    while True:
        with database.write() as session:
            runs = due(session, keep, limit=BATCH)
            trials = [trial for run in runs for trial in store.trials_of(session, run.id)]
            for run in runs:
                run.archived_at = store.now()
            names = [trial.id for trial in trials]
            for table in (EventRow, StepSample, ReadOffset):
                session.execute(delete(table).where(table.trial_id.in_(names)))
        if not runs:
            return archived
        for trial in trials:
            _remove(trial)
        archived += [run.id for run in runs]


def tidy(database: Database) -> None:
    """Forget answers that nobody will ask for again, messages told long ago, and sessions that are over."""
    now = store.now()
    with database.write() as session:
        session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < now - KEYS_LAST))
        old = (Delivery.state != PENDING, Delivery.created_at < now - MESSAGES_LAST)
        session.execute(delete(Delivery).where(*old))
        session.execute(delete(LoginSession).where(LoginSession.expires_at < now))


def _remove(trial: Trial) -> None:
    """The bulk of a directory, if it is on this machine."""
    if trial.directory is not None:
        for part in PARTS:
            shutil.rmtree(Path(trial.directory) / part, ignore_errors=True)
