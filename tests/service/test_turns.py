"""Writers of one database take turns, so that what is read up to an offset has nothing missing before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from service.database import Database
from tests.support import wait_until


@pytest.fixture
def database(tmp_path: Path, database_url: str | None) -> Iterator[Database]:
    opened = Database(database_url or f"sqlite:///{tmp_path / 'test.db'}")
    opened.migrate()
    yield opened
    opened.close()


@pytest.mark.both_databases
def test_the_second_writer_sees_what_the_first_wrote(database: Database) -> None:
    began = threading.Event()
    seen: list[int] = []

    def second() -> None:
        began.set()
        with database.write() as session:
            seen.append(session.scalar(text("SELECT count(*) FROM tokens")) or 0)

    other = threading.Thread(target=second)
    with database.write() as session:
        session.execute(text("SELECT 1"))  # A turn begins with the first statement.
        other.start()
        began.wait(10)
        if database.postgres:
            # Only there can be seen that it waits, and not merely comes late.
            waits = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")

            def waiting() -> bool:
                with database.read() as reader:
                    return bool(reader.scalar(waits))

            wait_until(waiting, "the second writer to wait")
        assert seen == []
        session.execute(
            text(
                "INSERT INTO tokens (id, name, role, hash, created_at, created_by) "
                "VALUES ('a', 'a', 'admin', 'x', '2026-11-30', 'a')"
            )
        )
    other.join(20)
    assert seen == [1]


@pytest.mark.both_databases
def test_a_reader_sees_one_instant(database: Database) -> None:
    count = text("SELECT count(*) FROM tokens")
    with database.read() as reader:
        assert reader.scalar(count) == 0
        with database.write() as writer:
            writer.execute(
                text(
                    "INSERT INTO tokens (id, name, role, hash, created_at, created_by) "
                    "VALUES ('a', 'a', 'admin', 'x', '2026-11-30', 'a')"
                )
            )
        assert reader.scalar(count) == 0
    with database.read() as reader:
        assert reader.scalar(count) == 1
