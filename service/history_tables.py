"""Tables of what histories and comparisons are made of: one row a trial, gathered into the points that they show."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from chaos.compare.samples import Code
from service.tables import Base, Serial


class PointRow(Base):
    """All trials of one code in one session: of one scenario, as it was then, on one machine.

    `version` and `fingerprint` are digests: what a scenario and a machine are is said once (`DigestRow`), so that a
    look at all points is short. `faults` is JSON, the metrics of each fault in the order of the scenario; a text,
    because PostgreSQL has no equality of JSON, and what there is to choose from is found by it. Moments are texts as
    trials write them, which sort.
    """

    __tablename__ = "points"
    __table_args__ = (
        UniqueConstraint("scenario", "version", "commit", "diff", "fingerprint", "session"),
        Index("ix_points_scenario_first_at", "scenario", "first_at"),
        Index("ix_points_commit_diff", "commit", "diff"),
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    scenario: Mapped[str] = mapped_column(String(200))
    version: Mapped[str] = mapped_column(String(12))
    commit: Mapped[str] = mapped_column(String(64))
    diff: Mapped[str] = mapped_column(String(64))
    fingerprint: Mapped[str] = mapped_column(String(12))
    session: Mapped[str] = mapped_column(String(40))
    faults: Mapped[str] = mapped_column(Text)
    trials: Mapped[int]
    first_at: Mapped[str] = mapped_column(String(40))
    last_at: Mapped[str] = mapped_column(String(40))
    seeded: Mapped[bool] = mapped_column(Boolean)


class DigestRow(Base):
    """A scenario's shape, or a machine, by its digest."""

    __tablename__ = "digests"

    digest: Mapped[str] = mapped_column(String(12), primary_key=True)
    document: Mapped[dict[str, Any]]


class SampleRow(Base):
    """One finished trial, whoever ran it; `id` is a digest of its specification, so that a copy counts once.

    `times` by fault and metric in seconds, null for what never came to an end. `place`: the host and the directory that
    it was read from, so that it is not read again.
    """

    __tablename__ = "samples"
    __table_args__ = (Index("ix_samples_point_id_at", "point_id", "at"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    point_id: Mapped[int] = mapped_column(ForeignKey("points.id"))
    trial: Mapped[str] = mapped_column(String(200), index=True)
    at: Mapped[str] = mapped_column(String(40))
    seed: Mapped[int] = mapped_column(BigInteger)
    judged: Mapped[bool] = mapped_column(Boolean)
    succeeded: Mapped[bool] = mapped_column(Boolean)
    seeded: Mapped[bool] = mapped_column(Boolean)
    times: Mapped[dict[str, Any]]
    versions: Mapped[dict[str, Any]]
    place: Mapped[str] = mapped_column(String(1000), index=True)


class BaselineRow(Base):
    """The code that a scenario's trials are held against, until somebody chooses another."""

    __tablename__ = "baselines"

    scenario: Mapped[str] = mapped_column(String(200), primary_key=True)
    commit: Mapped[str] = mapped_column(String(64))
    diff: Mapped[str] = mapped_column(String(64))
    at: Mapped[datetime]
    by: Mapped[str] = mapped_column(String(100))
    reason: Mapped[str] = mapped_column(Text)

    @property
    def code(self) -> Code:
        return Code(commit=self.commit, diff=self.diff)
