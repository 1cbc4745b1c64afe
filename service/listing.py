"""Lists of runs and trials, page by page, with what they are filtered by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from chaos.verdict import Verdict
from service.states import RunState
from service.tables import Run, Trial


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs a list holds; what is left out (None) excludes none."""

    states: Sequence[RunState] = ()
    verdict: Verdict | None = None
    scenario: str | None = None
    suite: str | None = None
    schedule: str | None = None
    workload: str | None = None
    commit: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        equal: tuple[tuple[ColumnElement[Any] | InstrumentedAttribute[Any], object], ...] = (
            (Run.verdict, self.verdict),
            (Run.scenario, self.scenario),
            (Run.suite, self.suite),
            (Run.schedule_id, self.schedule),
            (Run.workload, self.workload),
        )
        found = [column == value for column, value in equal if value is not None]
        if self.states:
            found.append(Run.state.in_(self.states))
        if self.commit is not None:
            found.append(_begins(Run.commit, self.commit))
        if self.since is not None:
            found.append(Run.created_at >= self.since)
        if self.until is not None:
            found.append(Run.created_at < self.until)
        return found


def runs(session: Session, which: RunFilter, *, limit: int, before: int | None) -> list[Run]:
    """Newest first; `before` is the `seq` of the last run of the page before."""
    query = select(Run).where(*which.conditions()).order_by(Run.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(Run.seq < before)
    return list(session.scalars(query))


def all_trials(
    session: Session,
    *,
    scenario: str | None,
    verdict: Verdict | None,
    state: RunState | None,
    commit: str | None,
    limit: int,
    before: int | None,
) -> list[Trial]:
    """Newest first; `before` is the `position` of the last one of the page before."""
    query = select(Trial).order_by(Trial.position.desc()).limit(limit)
    for column, value in ((Trial.scenario, scenario), (Trial.verdict, verdict), (Trial.state, state)):
        if value is not None:
            query = query.where(column == value)
    if commit is not None:
        query = query.where(_begins(Trial.commit, commit))
    if before is not None:
        query = query.where(Trial.position < before)
    return list(session.scalars(query))


def _begins(column: InstrumentedAttribute[str | None], digits: str) -> ColumnElement[bool]:
    """As a range, which an index answers, as it does not LIKE: `g` comes after every hexadecimal digit."""
    return and_(column >= digits, column < f"{digits}g")
