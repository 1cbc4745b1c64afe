"""Insert rows, or put them in the place of those with the same primary key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.tables import Base


def execute(session: Session, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """`rows` all have the same keys and no primary key twice; an empty list does nothing."""
    if not rows:
        return
    key = [column.name for column in inspect(table).primary_key]
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = insert(table)
    others = {name: statement.excluded[name] for name in rows[0] if name not in key}
    session.execute(statement.on_conflict_do_update(index_elements=key, set_=others), rows)
