"""The migrations make exactly the tables that the code uses, up and down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import alembic.command
import pytest
from sqlalchemy import inspect, text

from service.database import Database, migration_config
from service.tables import Base


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'test.db'}")
    yield opened
    opened.close()


def test_tables_and_models_agree(database: Database) -> None:
    database.migrate()
    database.migrate()
    with database.engine.begin() as connection:
        alembic.command.check(migration_config(connection))


def test_down_and_up_again(database: Database) -> None:
    database.migrate()
    with database.engine.begin() as connection:
        alembic.command.downgrade(migration_config(connection), "base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.migrate()
    assert set(Base.metadata.tables) <= set(inspect(database.engine).get_table_names())


def test_every_constraint_has_a_name(database: Database) -> None:
    """A nameless one could not be dropped by a later migration on SQLite."""
    database.migrate()
    inspector = inspect(database.engine)
    for table in Base.metadata.tables:
        # SQLite writes the key of an AUTOINCREMENT table into the column, where no name can stand.
        assert table == "events" or inspector.get_pk_constraint(table)["name"]
        assert all(key["name"] for key in inspector.get_foreign_keys(table))
        assert all(unique["name"] for unique in inspector.get_unique_constraints(table))


def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    database.migrate()
    with database.write() as writer:
        writer.execute(text("DELETE FROM runs"))
        with database.read() as reader:
            assert reader.scalar(text("SELECT count(*) FROM runs")) == 0
        assert writer.scalar(text("PRAGMA journal_mode")) == "wal"
