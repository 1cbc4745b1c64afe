"""What lists of runs and trials are filtered by."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, select
from sqlalchemy.orm import InstrumentedAttribute

from chaos.verdict import Verdict
from service.control_tables import ServiceRow
from service.states import RunState
from service.tables import Run, Trial


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs a list holds; what is left out (None) excludes none. `host`: of the service that runs it."""

    states: Sequence[RunState] = ()
    verdict: Verdict | None = None
    scenario: str | None = None
    suite: str | None = None
    schedule: str | None = None
    workload: str | None = None
    commit: str | None = None
    commits: Collection[str] | None = None
    host: str | None = None
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
        if self.commits is not None:
            found.append(Run.commit.in_(self.commits))
        if self.host is not None:
            found.append(Run.service_id.in_(select(ServiceRow.id).where(ServiceRow.host == self.host)))
        if self.since is not None:
            found.append(Run.created_at >= self.since)
        if self.until is not None:
            found.append(Run.created_at < self.until)
        return found


def runs(which: RunFilter) -> Select[Run]:
    return select(Run).where(*which.conditions())


def all_trials(
    *, scenario: str | None, verdict: Verdict | None, state: RunState | None, commit: str | None
) -> Select[Trial]:
    query = select(Trial)
    for column, value in ((Trial.scenario, scenario), (Trial.verdict, verdict), (Trial.state, state)):
        if value is not None:
            query = query.where(column == value)
    return query if commit is None else query.where(_begins(Trial.commit, commit))


def _begins(column: InstrumentedAttribute[str | None], digits: str) -> ColumnElement[bool]:
    """As a range, which an index answers, as it does not LIKE: `g` comes after every hexadecimal digit."""
    return and_(column >= digits, column < f"{digits}g")
