"""The migrations make exactly the tables that the code uses, up and down, and keep what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import alembic.command
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    Integer,
    MetaData,
    Table,
    create_engine,
    inspect,
    select,
    text,
)

from service.context import opened_database
from service.database import Database, migration_config
from service.settings import Settings, SettingsError
from service.tables import Base
from tests.service import databases

pytestmark = pytest.mark.both_databases

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def database(tmp_path: Path, request: pytest.FixtureRequest, database_kind: str) -> Iterator[Database]:
    """An empty one, without any table."""
    if database_kind == "sqlite":
        opened = Database(f"sqlite:///{tmp_path / 'test.db'}")
        yield opened
        opened.close()
        return
    with databases.database(request.getfixturevalue("postgres_server")) as url:
        opened = Database(url)
        yield opened
        opened.close()


def revisions() -> list[str]:
    """All, oldest first."""
    with create_engine("sqlite://").connect() as connection:
        script = ScriptDirectory.from_config(migration_config(connection))
        return [revision.revision for revision in script.walk_revisions()][::-1]


def test_tables_and_models_agree(database: Database) -> None:
    database.migrate()
    database.migrate()
    with database.engine.begin() as connection:
        alembic.command.check(migration_config(connection))


def test_down_and_up_again(database: Database) -> None:
    database.migrate()
    database.downgrade("base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.migrate()
    assert set(Base.metadata.tables) <= set(inspect(database.engine).get_table_names())


@pytest.mark.parametrize("revision", revisions()[:-1] or ["head"])
def test_a_filled_database_of_an_earlier_revision_keeps_everything(database: Database, revision: str) -> None:
    database.migrate(revision)
    with database.engine.begin() as connection:
        filled = fill(connection)
    assert {"runs", "trials", "events", "step_samples", "faults", "recoveries"} <= filled.keys()
    database.migrate()
    with database.engine.begin() as connection:
        now = MetaData()
        now.reflect(connection)
        for name, rows in filled.items():
            table = now.tables[name]
            kept = [dict(row) for row in connection.execute(select(table)).mappings()]
            # A column may be added, and none may be lost or changed.
            assert [{key: row[key] for key in rows[0]} for row in kept] == rows, name
    with database.read() as session:
        for mapper in Base.registry.mappers:
            session.scalars(select(mapper.class_)).all()


def fill(connection: Connection) -> Rows:
    """Two rows in every table, with a value in every column, so that whatever is lost was there."""
    found = MetaData()
    found.reflect(connection)
    filled: Rows = {}
    for table in found.sorted_tables:
        if table.name == "alembic_version":
            continue
        filled[table.name] = [
            {column.name: _value(table, column, number, filled) for column in table.columns} for number in (1, 2)
        ]
        connection.execute(table.insert(), filled[table.name])
    return filled


def _value(table: Table, column: Column[Any], number: int, filled: Rows) -> object:
    for key in column.foreign_keys:
        return filled[key.column.table.name][number - 1][key.column.name]
    kind = column.type
    if isinstance(kind, Boolean):
        return number == 1
    if isinstance(kind, Integer):
        return number
    if isinstance(kind, Float):
        return number / 2
    if isinstance(kind, DateTime):
        return datetime(2026, 11, number)
    if isinstance(kind, JSON):
        return {"number": number}
    return f"{number}-{table.name}-{column.name}"[: getattr(kind, "length", None)]


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
        if not database.postgres:
            assert writer.scalar(text("PRAGMA journal_mode")) == "wal"


def test_a_database_of_a_newer_version_is_told_so(database: Database, tmp_path: Path) -> None:
    database.migrate()
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    url = database.engine.url.render_as_string(hide_password=False)
    with pytest.raises(SettingsError, match=r"made by a newer PHOENIX .*'9999'.*update this one"):
        opened_database(Settings(directory=tmp_path, database_url=url))
