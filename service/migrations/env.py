"""Runs the migrations on the connection that service.database hands over."""

from __future__ import annotations

from alembic import context

from service import control_tables, history_tables
from service.tables import Base

# Imported for its tables.
assert control_tables and history_tables


def run() -> None:
    """`render_as_batch`: SQLite cannot alter a table in place, so Alembic copies it."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()
