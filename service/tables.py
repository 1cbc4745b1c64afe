"""The database's tables. Samples and events are kept, never only a mean.

Constraints are named from the first migration on: SQLite cannot drop a nameless one later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite numbers rows by itself only in a column of type INTEGER.
Serial = BigInteger().with_variant(Integer, "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """Stored as UTC without a zone, because SQLite keeps none; always aware in Python."""

    impl = DateTime
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC).replace(tzinfo=None) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value else None


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[Mapping[Any, Any]] = {dict[str, Any]: JSON, datetime: UtcDateTime}


class Run(Base):
    """One submitted execution of a scenario or a suite. `seq` orders and pages; `id` is what users see.

    What describes a scenario here is that of the trial that runs now, else of the last one, else of the first.
    `service_id`: whose turn it is to run its trials, one after another.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_state_seq", "state", "seq"),
        Index("ix_runs_verdict_seq", "verdict", "seq"),
        Index("ix_runs_scenario_seq", "scenario", "seq"),
        Index("ix_runs_suite_seq", "suite", "seq"),
        Index("ix_runs_schedule_id_seq", "schedule_id", "seq"),
        Index("ix_runs_schedule_id_state_finished_at", "schedule_id", "state", "finished_at"),
        Index("ix_runs_workload_seq", "workload", "seq"),
    )

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    scenario: Mapped[str] = mapped_column(String(200))
    document: Mapped[dict[str, Any]]
    workload: Mapped[str] = mapped_column(String(200))
    runtime: Mapped[str] = mapped_column(String(64))
    nodes: Mapped[int]
    ranks_per_node: Mapped[int]
    spares: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[int]
    suite: Mapped[str | None] = mapped_column(String(200))
    schedule_id: Mapped[str | None] = mapped_column(String(32))
    service_id: Mapped[str | None] = mapped_column(String(32))
    revision: Mapped[str | None] = mapped_column(String(200))
    seeded: Mapped[bool] = mapped_column(Boolean, default=False)
    archived_at: Mapped[datetime | None]
    state: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str | None] = mapped_column(String(16))
    part: Mapped[str | None] = mapped_column(String(16))
    step: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    commit: Mapped[str | None] = mapped_column(String(64), index=True)
    dirty: Mapped[bool | None] = mapped_column(Boolean)
    reason: Mapped[str | None] = mapped_column(Text)
    requested_by: Mapped[str | None] = mapped_column(String(100))
    cancel_reason: Mapped[str | None] = mapped_column(Text)
    cancelled_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(index=True)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


class Trial(Base):
    """One launch of one runtime with one seed. `first_at` is the zero of all seconds of the trial.

    `position` orders trials of all runs: it grows with the run and, within it, with `number` (from 1). `halt_id`: the
    halt of which its process was told and that it still keeps. `service_id`: who started it, in whose data directory.
    """

    __tablename__ = "trials"
    __table_args__ = (
        Index("ix_trials_scenario_position", "scenario", "position"),
        Index("ix_trials_verdict_position", "verdict", "position"),
        Index("ix_trials_state_position", "state", "position"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    number: Mapped[int]
    position: Mapped[int] = mapped_column(BigInteger, unique=True)
    scenario: Mapped[str] = mapped_column(String(200))
    document: Mapped[dict[str, Any]]
    runtime: Mapped[str] = mapped_column(String(64))
    seed: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[int]
    commit: Mapped[str | None] = mapped_column(String(64), index=True)
    dirty: Mapped[bool | None] = mapped_column(Boolean)
    service_id: Mapped[str | None] = mapped_column(String(32))
    directory: Mapped[str | None] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    spawned: Mapped[bool] = mapped_column(Boolean, default=False)
    verdict: Mapped[str | None] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    checks: Mapped[dict[str, Any] | None]
    first_at: Mapped[int | None] = mapped_column(BigInteger)
    halt_id: Mapped[str | None] = mapped_column(String(32))
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class ReadOffset(Base):
    """How far a file of a trial directory is in the database; changes only together with its rows."""

    __tablename__ = "read_offsets"

    trial_id: Mapped[str] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    path: Mapped[str] = mapped_column(String(300), primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger)


class EventRow(Base):
    """One event as its process wrote it; `id` is the offset that clients page and resume by."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_run_id_id", "run_id", "id"),
        Index("ix_events_trial_id_kind_step", "trial_id", "kind", "step"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    trial_id: Mapped[str] = mapped_column(ForeignKey("trials.id"))
    part: Mapped[str] = mapped_column(String(16))
    kind: Mapped[str] = mapped_column(String(40))
    at: Mapped[int] = mapped_column(BigInteger)
    host: Mapped[str] = mapped_column(String(100))
    boot: Mapped[str] = mapped_column(String(64))
    node: Mapped[str | None] = mapped_column(String(40))
    worker: Mapped[str | None] = mapped_column(String(40))
    generation: Mapped[int | None]
    rank: Mapped[int | None]
    step: Mapped[int | None]
    data: Mapped[dict[str, Any]]


class StepSample(Base):
    """One rank's execution of one step; executing it again after a recovery takes its place."""

    __tablename__ = "step_samples"

    trial_id: Mapped[str] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    generation: Mapped[int]
    at: Mapped[int] = mapped_column(BigInteger)
    duration_ns: Mapped[int | None] = mapped_column(BigInteger)
    loss: Mapped[float | None] = mapped_column(Float)


class FaultRow(Base):
    """One planned fault of a trial, asked for by its scenario or live.

    `delivered`: the trial can see what was asked: the fault and, with `revert_requested_at`, to take it back.
    """

    __tablename__ = "faults"
    __table_args__ = (Index("ix_faults_delivered_run_id", "delivered", "run_id"),)

    trial_id: Mapped[str] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    seq: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(64))
    target: Mapped[dict[str, Any]]
    trigger: Mapped[dict[str, Any]]
    params: Mapped[dict[str, Any]]
    reason: Mapped[str | None] = mapped_column(Text)
    live: Mapped[bool] = mapped_column(Boolean)
    delivered: Mapped[bool] = mapped_column(Boolean)
    state: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str | None] = mapped_column(Text)
    requested_at: Mapped[datetime]
    injected_at: Mapped[int | None] = mapped_column(BigInteger)
    worker: Mapped[str | None] = mapped_column(String(40))
    rank: Mapped[int | None]
    pid: Mapped[int | None]
    fidelity: Mapped[str | None] = mapped_column(String(16))
    requested_by: Mapped[str | None] = mapped_column(String(100))
    revert_requested_at: Mapped[datetime | None]
    revert_reason: Mapped[str | None] = mapped_column(Text)
    reverted_at: Mapped[int | None] = mapped_column(BigInteger)


class RecoveryRow(Base):
    """One recovery as REST shows it, computed when its events arrive and not per request."""

    __tablename__ = "recoveries"

    trial_id: Mapped[str] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    generation: Mapped[int | None]
    fault_id: Mapped[str | None] = mapped_column(String(64))
    document: Mapped[dict[str, Any]]


class IdempotencyKey(Base):
    """The answer once given to a POST with a key: the same request gets it again, without effect."""

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    route: Mapped[str] = mapped_column(String(300), primary_key=True)
    body_hash: Mapped[str] = mapped_column(String(64))
    status: Mapped[int]
    location: Mapped[str | None] = mapped_column(String(300))
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
