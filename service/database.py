"""Opens the database: transactions that cannot deadlock, and migrations run at service start."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic.command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

MIGRATIONS = Path(__file__).with_name("migrations")


class Database:
    """Two kinds of transaction: `read()` sees one consistent snapshot, `write()` is serialised.

    On SQLite a write transaction takes its lock when it begins (BEGIN IMMEDIATE): one that reads
    first and writes later could otherwise fail half-way because another one wrote in between.
    """

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url)
        self._writer = self.engine.execution_options(phoenix_write=True)
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _configure_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def read(self) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Commits at the end of the block; an exception rolls everything back."""
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def migrate(self) -> None:
        """Bring the schema to the newest revision; does nothing if it is there already."""
        with self._writer.begin() as connection:
            alembic.command.upgrade(migration_config(connection), "head")

    def close(self) -> None:
        self.engine.dispose()


def migration_config(connection: Connection) -> Config:
    """Alembic's configuration without an ini file: the migrations are part of the package."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _configure_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """WAL lets pages read while the ingest writes.

    synchronous=NORMAL keeps every committed transaction over the death of the process; a power
    failure may take the newest ones, whose events are still in the trial directories.
    """
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # Transactions begin where SQLAlchemy says so, see _begin_sqlite.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    options: Any = connection.get_execution_options()
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("phoenix_write") else "BEGIN")


__all__ = ["Database", "Engine", "migration_config"]
