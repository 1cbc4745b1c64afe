"""The queue of runs, and the services that share it.

A service's heartbeat is the lease on the runs that it took: whose heartbeat is missing for longer than that has lost
them. Its trial may well live on, on a machine that nobody hears of, so it is given up and not started a second time;
the trials of that run that had not begun go to whoever comes next. All of it happens in write transactions, which are
serialised, so that two services never take the same run.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session

from chaos.compare.samples import digest_of
from chaos.provenance import machine
from service import endings, halts, store
from service.control_tables import ServiceRow
from service.fitting import fit_text
from service.settings import Settings, version
from service.states import RunState
from service.tables import Run, Trial

ID_NAME = "service.id"


def identity(directory: Path) -> str:
    """The name of the service of this data directory, the same at each start. Raises OSError."""
    file = directory / ID_NAME
    if not file.exists():
        temporary = file.with_suffix(".tmp")
        temporary.write_text(f"service-{secrets.token_hex(6)}")
        temporary.replace(file)
    return file.read_text().strip()


def register(session: Session, service: str, settings: Settings) -> None:
    """This service is here (again)."""
    row = session.get(ServiceRow, service) or ServiceRow(id=service)
    row.host, row.pid, row.version = fit_text(socket.gethostname(), 100), os.getpid(), version()[:40]
    row.fingerprint = digest_of(machine())
    row.url, row.max_active, row.started_at = settings.address, settings.max_active, store.now()
    row.heartbeat_at, row.stopped_at, row.trouble = store.now(), None, None
    session.add(row)


def beat(session: Session, service: str, trouble: str) -> None:
    row = session.get_one(ServiceRow, service)
    row.heartbeat_at, row.trouble, row.stopped_at = store.now(), trouble or None, None


def depart(session: Session, service: str) -> None:
    """It stops on purpose. Its trials go on, and the lease on them with its last heartbeat."""
    row = session.get_one(ServiceRow, service)
    row.heartbeat_at = row.stopped_at = store.now()


def services(session: Session) -> Sequence[ServiceRow]:
    return session.scalars(select(ServiceRow).order_by(ServiceRow.started_at, ServiceRow.id)).all()


def next_trial(session: Session, service: str) -> tuple[Run, Trial] | None:
    """Whose turn it is: the next trial of a run that this service has begun, or that nobody has (any more).

    Runs take turns by age, and the trials of one run never run side by side. Nothing starts during a halt.
    """
    if halts.active(session) is not None:
        return None
    running = exists().where(Trial.run_id == Run.id, Trial.state == RunState.RUNNING)
    waiting = exists().where(Trial.run_id == Run.id, Trial.state == RunState.QUEUED)
    query = (
        select(Run)
        .where(
            Run.state.in_((RunState.QUEUED, RunState.RUNNING)),
            or_(Run.service_id.is_(None), Run.service_id == service),
            Run.cancelled_at.is_(None),
            ~running,
            waiting,
        )
        .order_by(Run.seq)
        .limit(1)
    )
    if (run := session.scalars(query).one_or_none()) is None:
        return None
    first = select(Trial).where(Trial.run_id == run.id, Trial.state == RunState.QUEUED).order_by(Trial.number).limit(1)
    return run, session.scalars(first).one()


def lost(session: Session, service: str, lease_s: float) -> list[Trial]:
    """Running trials of other services whose lease is over."""
    alive = select(ServiceRow.id).where(ServiceRow.heartbeat_at > store.now() - timedelta(seconds=lease_s))
    query = select(Trial).where(
        Trial.state == RunState.RUNNING,
        Trial.service_id.is_not(None),
        Trial.service_id != service,
        Trial.service_id.not_in(alive),
    )
    return list(session.scalars(query))


def give_up(session: Session, trial: Trial) -> None:
    """Nobody has heard of the service that runs it: its run goes on with others, or ends."""
    heard = session.get(ServiceRow, trial.service_id)
    since = f" since {heard.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC" if heard else ""
    host = f" on {heard.host}" if heard else ""
    error = f"nothing was heard of the service that ran it ({trial.service_id}{host}){since}"
    endings.end_trial(session, trial, RunState.ABANDONED, None, error)
    run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
    run.service_id = None
    endings.end_run_if_over(session, run)


def free_orphans(session: Session, service: str, lease_s: float) -> None:
    """Runs between two trials whose service is gone: whoever comes next goes on with them."""
    alive = select(ServiceRow.id).where(ServiceRow.heartbeat_at > store.now() - timedelta(seconds=lease_s))
    running = exists().where(Trial.run_id == Run.id, Trial.state == RunState.RUNNING)
    query = select(Run).where(
        Run.state == RunState.RUNNING,
        Run.service_id.is_not(None),
        Run.service_id != service,
        Run.service_id.not_in(alive),
        ~running,
    )
    for run in session.scalars(query):
        run.service_id = None


def given_up_by_others(session: Session, service: str) -> list[Trial]:
    """Trials of this service that others gave up while it was away; their processes may live."""
    mine = (Trial.service_id == service, Trial.state == RunState.ABANDONED)
    return list(session.scalars(select(Trial).where(*mine).order_by(Trial.position.desc()).limit(1000)))


def depth(session: Session) -> dict[RunState, int]:
    """How many trials wait, and how many run."""
    states = (RunState.QUEUED, RunState.RUNNING)
    query = select(Trial.state, func.count()).where(Trial.state.in_(states)).group_by(Trial.state)
    return {**dict.fromkeys(states, 0), **{RunState(state): number for state, number in session.execute(query)}}
