"""Lists page by page: `next` of one page is the cursor of the following one.

A cursor tells behind which row to go on by the values that order the list, so rows that come and go meanwhile neither
shift a page nor show a row twice, and the last page costs what the first one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.problems import Problem

Row = TypeVar("Row")
Column = InstrumentedAttribute[Any]
# More are no number that a database could have given.
MOST_DIGITS = 18


def page(
    session: Session,
    query: Select[Row],
    order: Sequence[Column],
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> tuple[list[Row], str | None]:
    """Rows of the page, and `next` (None: there are no more).

    `order`: columns that name one row together, all of them rising, or all falling (`newest_first`). Raises Problem 422
    for a cursor that no page has told.
    """
    if cursor is not None:
        here, place = _comparable(order, _values(order, cursor))
        query = query.where(here < place if newest_first else here > place)
    query = query.order_by(*(column.desc() if newest_first else column.asc() for column in order))
    rows: list[Row] = list(session.scalars(query.limit(limit + 1)))
    return rows[:limit], _cursor(order, rows[limit - 1]) if len(rows) > limit else None


def _comparable(order: Sequence[Column], values: Sequence[object]) -> tuple[Any, Any]:
    """Both sides of a comparison. One column alone is none of a row: of that not every index knows."""
    typed = [literal(value, column.type) for column, value in zip(order, values, strict=True)]
    return (order[0], typed[0]) if len(order) == 1 else (tuple_(*order), tuple_(*typed))


def _cursor(order: Sequence[Column], row: object) -> str:
    values = (getattr(row, column.key) for column in order)
    return " ".join(value.isoformat() if isinstance(value, datetime) else str(value) for value in values)


def _values(order: Sequence[Column], cursor: str) -> list[object]:
    """Only the last value may hold a blank."""
    parts = cursor.split(" ", len(order) - 1)
    try:
        return [_value(column.type.python_type, part) for column, part in zip(order, parts, strict=True)]
    except (ValueError, OverflowError):
        raise Problem(422, "invalid-request", f"cursor: {cursor!r} is `next` of no page of this list") from None


def _value(kind: type, text: str) -> object:
    if kind is datetime:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    if kind is int:
        if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
            raise ValueError(text)
        return int(text)
    return text
