"""Opens the database, SQLite or PostgreSQL: transactions that cannot deadlock, and migrations at service start."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic.command
from alembic.config import Config
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from service.fitting import to_json_text

MIGRATIONS = Path(__file__).with_name("migrations")
SQLITE = "sqlite"
POSTGRES = "postgresql"
# The number of the advisory lock by which writers of PostgreSQL take turns; nobody else's meaning.
_WRITERS = 0x70686F656E6978
_GIVE = "sqlite:////path/to/file or postgresql://user:password@host/name"
# Requests are served by up to forty threads, of which most wait for something else than the database.
_CONNECTIONS = 20


class DatabaseError(Exception):
    """A URL that names no database that can be used; the message says why."""


class Database:
    """Two kinds of transaction: `read()` sees one consistent snapshot, `write()` is serialised.

    Writers take turns on both databases. On SQLite a write transaction takes its lock when it begins (BEGIN IMMEDIATE):
    one that reads first and writes later could otherwise fail half-way because another one wrote in between. On
    PostgreSQL an advisory lock does the same, for a reason more: offsets of events are given out and committed in the
    same order, so that whoever reads up to an offset has missed nothing before it.
    """

    def __init__(self, url: str) -> None:
        """Raises DatabaseError for a URL of something else, or where the driver is not installed."""
        parsed = checked_url(url)
        self.postgres = parsed.get_backend_name() == POSTGRES
        more: dict[str, Any] = {"pool_pre_ping": True} if self.postgres else {}
        try:
            self.engine = create_engine(parsed, json_serializer=to_json_text, pool_size=_CONNECTIONS, **more)
        except ModuleNotFoundError as error:
            raise DatabaseError(f"{error.name} is not installed: pip install 'phoenix-resilience[postgres]'") from error
        reading: dict[str, Any] = {"isolation_level": "REPEATABLE READ"} if self.postgres else {}
        self._reader = self.engine.execution_options(**reading)
        self._writer = self.engine.execution_options(phoenix_write=True)
        if self.postgres:
            event.listen(self._writer, "begin", _begin_postgres_write)
        else:
            event.listen(self.engine, "connect", _configure_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def read(self) -> Iterator[Session]:
        with Session(self._reader, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Commits at the end of the block; an exception rolls everything back."""
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema to the newest revision; does nothing if it is there already."""
        with self._migrating() as config:
            alembic.command.upgrade(config, revision)

    def downgrade(self, revision: str) -> None:
        with self._migrating() as config:
            alembic.command.downgrade(config, revision)

    @contextmanager
    def _migrating(self) -> Iterator[Config]:
        """One transaction. SQLite alters a table by making it anew, which its references must not notice."""
        with self._writer.connect() as connection:
            raw: Any = connection.connection.dbapi_connection
            if not self.postgres:
                raw.execute("PRAGMA foreign_keys=OFF").close()
            try:
                with connection.begin():
                    yield migration_config(connection)
                    if not self.postgres and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                        raise DatabaseError("the migration would break references between tables; nothing was changed")
            finally:
                if not self.postgres:
                    raw.execute("PRAGMA foreign_keys=ON").close()

    def close(self) -> None:
        self.engine.dispose()


def checked_url(url: str) -> URL:
    """`postgresql://` with the driver that we use. Raises DatabaseError for all but it and files of SQLite."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.drivername not in (SQLITE, POSTGRES, "postgres", "postgresql+psycopg"):
        raise DatabaseError(f"{url.partition(':')[0]!r} is no database that can be used: give {_GIVE}")
    if parsed.drivername == SQLITE and _is_memory(parsed):
        raise DatabaseError(f"{url!r} is a database in memory, of which nothing would be left: give {_GIVE}")
    return parsed if parsed.drivername == SQLITE else parsed.set(drivername="postgresql+psycopg")


def _is_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:", "file::memory:") or url.query.get("mode") == "memory"


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


def _begin_postgres_write(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")


__all__ = ["Database", "DatabaseError", "Engine", "checked_url", "migration_config"]
