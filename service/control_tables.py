"""Tables by which the service is controlled: halts, who did what, and who may."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables import Base, Serial


class Halt(Base):
    """No fault may be active or begin while one of these is in force. `until`: None until it is released."""

    __tablename__ = "halts"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    by: Mapped[str] = mapped_column(String(100))
    at: Mapped[datetime] = mapped_column(index=True)
    until: Mapped[datetime | None]
    released_at: Mapped[datetime | None] = mapped_column(index=True)
    released_by: Mapped[str | None] = mapped_column(String(100))
    release_reason: Mapped[str | None] = mapped_column(Text)
    reverts: Mapped[int]
    withdraws: Mapped[int]


class AuditRow(Base):
    """One change of anything: who, what, to what, why. Rows are only ever added."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_action_seq", "action", "seq"), Index("ix_audit_target_seq", "target", "seq"))

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(100), index=True)
    role: Mapped[str] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(40))
    target: Mapped[str] = mapped_column(String(100))
    reason: Mapped[str | None] = mapped_column(Text)
    detail: Mapped[dict[str, Any]]


class Token(Base):
    """A way in. Only a hash of the secret is kept: whoever reads the database gets no access by it."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    role: Mapped[str] = mapped_column(String(16))
    hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(index=True)
    created_by: Mapped[str] = mapped_column(String(100))
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revoked_by: Mapped[str | None] = mapped_column(String(100))


class LoginSession(Base):
    """A browser that showed a token; ends with the token at the latest. `id` is a hash of the cookie's value."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class ServiceRow(Base):
    """One service on this database, known by its data directory. Its heartbeat is the lease on what it runs.

    `fingerprint`: of its machine, as the history names it.
    """

    __tablename__ = "services"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    host: Mapped[str] = mapped_column(String(100))
    fingerprint: Mapped[str | None] = mapped_column(String(12))
    pid: Mapped[int]
    version: Mapped[str] = mapped_column(String(40))
    url: Mapped[str] = mapped_column(String(200))
    max_active: Mapped[int]
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    stopped_at: Mapped[datetime | None]
    trouble: Mapped[str | None] = mapped_column(Text)


class Schedule(Base):
    """What runs by itself, and when. `next_due` is None while it is paused, and when it is never due again."""

    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    kind: Mapped[str] = mapped_column(String(16))
    cron: Mapped[str | None] = mapped_column(String(200))
    every_s: Mapped[float | None] = mapped_column(Float)
    at: Mapped[datetime | None]
    timezone: Mapped[str] = mapped_column(String(64))
    document: Mapped[dict[str, Any]]
    overlap: Mapped[str] = mapped_column(String(16))
    misfire_grace_s: Mapped[float] = mapped_column(Float)
    stale_after_s: Mapped[float | None] = mapped_column(Float)
    base: Mapped[str | None] = mapped_column(String(100))
    webhook_id: Mapped[str | None] = mapped_column(ForeignKey("webhooks.id"))
    paused_at: Mapped[datetime | None]
    paused_reason: Mapped[str | None] = mapped_column(Text)
    next_due: Mapped[datetime | None] = mapped_column(index=True)
    stale_told_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class Firing(Base):
    """One instant at which a schedule was due, and what came of it; each instant has one."""

    __tablename__ = "firings"

    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id"), primary_key=True)
    due_at: Mapped[datetime] = mapped_column(primary_key=True)
    fired_at: Mapped[datetime]
    outcome: Mapped[str] = mapped_column(String(16))
    run_id: Mapped[str | None] = mapped_column(String(32), index=True)
    detail: Mapped[str | None] = mapped_column(Text)
    compared_at: Mapped[datetime | None]
    comparison: Mapped[dict[str, Any] | None]


class Webhook(Base):
    """Where to tell what happened. The secret signs what is told, so it has to be kept as it is."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    url: Mapped[str] = mapped_column(String(2000))
    events: Mapped[dict[str, Any]]
    description: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    deleted_at: Mapped[datetime | None]


class Delivery(Base):
    """One message to one webhook. `next_at` is when it is tried (again), or when whoever tries it has given up."""

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_state_next_at", "state", "next_at"),
        Index("ix_deliveries_webhook_id_created_at", "webhook_id", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"))
    event: Mapped[str] = mapped_column(String(40))
    body: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int]
    created_at: Mapped[datetime]
    next_at: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)


class Annotation(Base):
    """What somebody knows of a moment, a commit, a scenario or a run."""

    __tablename__ = "annotations"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    text: Mapped[str] = mapped_column(Text)
    by: Mapped[str] = mapped_column(String(100))
    commit: Mapped[str | None] = mapped_column(String(100))
    scenario: Mapped[str | None] = mapped_column(String(200))
    run_id: Mapped[str | None] = mapped_column(String(32))


class TriageRow(Base):
    """What somebody decided about a code with which a level changed. Rows are only ever added: the last one counts."""

    __tablename__ = "triage"

    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[datetime]
    code: Mapped[str] = mapped_column(String(100))
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(String(100))
    link: Mapped[str | None] = mapped_column(String(2000))
    by: Mapped[str] = mapped_column(String(100))
