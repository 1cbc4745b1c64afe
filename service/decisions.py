"""What people noted and decided about a history (annotations, triage, baselines): what is valid, and out of a database
and into another.

No directory of a trial holds it, so an export of all runs carries it as a file of its own. What such a file says is
held to the same rules as what is said over REST.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, field_validator
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control_tables import Annotation, TriageRow
from service.documents import Document
from service.history_tables import BaselineRow
from service.patterns import LINK, ONE_LINE
from service.shapes import Moment, Shape, text_of

FILE: Final = "decisions.json"
"""Its name in an export, where every other name is that of a trial."""

# --- what is valid ---------------------------------------------------------------------------------------------------

Words = Annotated[str, text_of(2000)]
NotedCommit = Annotated[str | None, Field(min_length=4, max_length=100)]
NotedScenario = Annotated[str | None, Field(max_length=200)]
NotedRun = Annotated[str | None, Field(max_length=32)]
BaselineScenario = Annotated[str, Field(min_length=1, max_length=64)]


class TriageState(StrEnum):
    """A change that nobody has decided about is new; deciding so again opens it anew."""

    NEW = "new"
    ACKNOWLEDGED = "acknowledged"
    WONT_FIX = "wont_fix"
    FALSE_ALARM = "false_alarm"
    RESOLVED = "resolved"


class NewDecision(Shape):
    """`code`: with which the level changed, as the history names it. `owner`: who looks into it; `link`: the bug."""

    code: Annotated[str, Field(pattern="^[0-9a-z]+(-[0-9a-f]+)?$", max_length=100)]
    state: TriageState
    reason: Words
    owner: Annotated[str | None, text_of(100), Field(pattern=ONE_LINE)] = None
    link: Annotated[str | None, Field(pattern=LINK, max_length=2000)] = None


# --- the file --------------------------------------------------------------------------------------------------------

Name = Annotated[str, Field(min_length=1, max_length=100)]


class _Row(Document):
    """One that somebody made, at some time."""

    at: Moment
    by: Name


class _Annotation(_Row):
    id: Annotated[str, Field(min_length=1, max_length=32)]
    text: Words
    commit: NotedCommit
    scenario: NotedScenario
    run_id: NotedRun


class _Triage(_Row, NewDecision):
    pass


class _Baseline(_Row):
    scenario: BaselineScenario
    commit: Annotated[str, Field(pattern="^[0-9a-z]+$", max_length=64)]
    diff: Annotated[str, Field(pattern="^[0-9a-f]*$", max_length=64)]
    reason: Words


class Decisions(Document):
    """As the file holds them."""

    annotations: list[_Annotation]
    triage: list[_Triage]
    baselines: list[_Baseline]

    @field_validator("annotations")
    @classmethod
    def _one_of_each_id(cls, found: list[_Annotation]) -> list[_Annotation]:
        _once("id", (row.id for row in found))
        return found

    @field_validator("baselines")
    @classmethod
    def _one_of_each_scenario(cls, found: list[_Baseline]) -> list[_Baseline]:
        _once("scenario", (row.scenario for row in found))
        return found


def _once(field: str, values: Iterable[str]) -> None:
    twice = [value for value, number in Counter(values).items() if number > 1]
    if twice:
        raise ValueError(f"the {field} {twice[0]!r} is there more than once")


def export(session: Session) -> bytes:
    rows = {
        "annotations": [_columns(row, _Annotation) for row in session.scalars(select(Annotation))],
        "triage": [_columns(row, _Triage) for row in session.scalars(select(TriageRow).order_by(TriageRow.seq))],
        "baselines": [_columns(row, _Baseline) for row in session.scalars(select(BaselineRow))],
    }
    return json.dumps(rows, indent=1).encode()


def _columns(row: object, shape: type[Document]) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in shape.model_fields}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def take_in(session: Session, found: Decisions) -> int:
    """Add what the database does not have yet, and say how many that were.

    A baseline that somebody chose here stays. Of a code's triage the last row counts, so rows from there that are older
    than one of here would overrule it, and are left out.
    """
    latest: dict[str, datetime] = {}
    for row in session.scalars(select(TriageRow)):
        latest[row.code] = max(row.at, latest.get(row.code, row.at))
    new = [
        *(Annotation(**a.model_dump()) for a in found.annotations if session.get(Annotation, a.id) is None),
        *(TriageRow(**t.model_dump()) for t in found.triage if t.code not in latest or t.at > latest[t.code]),
        *(BaselineRow(**b.model_dump()) for b in found.baselines if session.get(BaselineRow, b.scenario) is None),
    ]
    session.add_all(new)
    return len(new)
