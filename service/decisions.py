"""What people noted and decided about a history (annotations, triage, baselines): out of a database and into another.

No directory of a trial holds it, so an export of all runs carries it as a file of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints, ValidationError, field_validator
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control_tables import Annotation, TriageRow
from service.fitting import fit_text
from service.history_tables import BaselineRow

FILE: Final = "decisions.json"
"""Its name in an export, where every other name is that of a trial."""

Short = Annotated[str, StringConstraints(max_length=32)]
Name = Annotated[str, StringConstraints(max_length=100)]
Scenario = Annotated[str, StringConstraints(max_length=200)]


class _Row(BaseModel):
    model_config = ConfigDict(from_attributes=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def _storable(cls, value: object) -> object:
        return fit_text(value, len(value)) if isinstance(value, str) else value


class _Annotation(_Row):
    id: Short
    at: AwareDatetime
    text: str
    by: Name
    commit: Name | None
    scenario: Scenario | None
    run_id: Short | None


class _Triage(_Row):
    at: AwareDatetime
    code: Name
    state: Annotated[str, StringConstraints(max_length=16)]
    reason: str
    owner: Name | None
    link: Annotated[str, StringConstraints(max_length=2000)] | None
    by: Name


class _Baseline(_Row):
    scenario: Scenario
    commit: Annotated[str, StringConstraints(max_length=64)]
    diff: Annotated[str, StringConstraints(max_length=64)]
    at: AwareDatetime
    by: Name
    reason: str


class _Decisions(_Row):
    annotations: list[_Annotation]
    triage: list[_Triage]
    baselines: list[_Baseline]


def export(session: Session) -> bytes:
    return _Decisions(
        annotations=[_Annotation.model_validate(row) for row in session.scalars(select(Annotation))],
        triage=[_Triage.model_validate(row) for row in session.scalars(select(TriageRow).order_by(TriageRow.seq))],
        baselines=[_Baseline.model_validate(row) for row in session.scalars(select(BaselineRow))],
    ).model_dump_json(indent=1).encode()  # fmt: skip


def take_in(session: Session, text: bytes) -> int:
    """Add what the database does not have yet, and say how many that were. Raises ValueError.

    A baseline that somebody chose here stays. Of a code's triage the last row counts, so rows from there that are older
    than one of here would overrule it, and are left out.
    """
    try:
        found = _Decisions.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
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
