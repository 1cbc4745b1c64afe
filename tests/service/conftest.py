"""Fixtures of the service's tests.

Every test that uses a database runs on SQLite and on PostgreSQL: on both in `make test` where it is marked
`both_databases`, else on PostgreSQL in `make soak`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from service.database import Database
from service.settings import Settings
from tests.service import databases
from tests.service.helpers import Harness, harness

# Stands for a trial's process: it lives until its standard input, or the file `end` in its directory, says otherwise.
LIVING = """
import pathlib, sys, time
directory = pathlib.Path(sys.argv[1])
(directory / "begun").write_text("yes")
while not (directory / "end").exists():
    time.sleep(0.005)
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_databases") is not None
        postgres = pytest.param("postgres", marks=() if both else pytest.mark.soak)
        metafunc.parametrize("database_kind", ["sqlite", postgres])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with databases.server() as url:
        yield url


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> Iterator[str]:
    """The name of a database with the newest schema, to be copied: migrating takes longer than copying."""
    with databases.database(postgres_server) as url:
        database = Database(url)
        database.migrate()
        database.close()
        yield databases.name_of(url)


@pytest.fixture(scope="session", autouse=True)
def postgres_before_tests(request: pytest.FixtureRequest) -> None:
    """Start the server, if any test needs it, before one is watched for what it leaves behind."""
    kinds = (item.callspec.params.get("database_kind") for item in request.session.items if hasattr(item, "callspec"))
    if "postgres" in kinds:
        request.getfixturevalue("migrated_postgres")


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the newest schema, to be copied for the same reason."""
    file = tmp_path_factory.mktemp("sqlite") / "phoenix.db"
    database = Database(f"sqlite:///{file}")
    database.migrate()
    database.close()
    return file


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database_kind: str) -> Iterator[str | None]:
    """None: SQLite in the data directory."""
    if database_kind == "sqlite":
        yield None
        return
    like = request.getfixturevalue("migrated_postgres")
    with databases.database(request.getfixturevalue("postgres_server"), like=like) as url:
        yield url


@pytest.fixture
def settings(tmp_path: Path, database_url: str | None, migrated_sqlite: Path) -> Iterator[Settings]:
    """A service whose trials are processes that do nothing, so that a test plays them."""
    directory = tmp_path / "data"
    if database_url is None:
        directory.mkdir()
        shutil.copy(migrated_sqlite, directory / "phoenix.db")
    yield Settings(directory=directory, database_url=database_url, trial_command=(sys.executable, "-c", LIVING))
    for trial in directory.glob("trials/*"):
        (trial / "end").touch()


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Harness]:
    async with harness(settings) as opened:
        yield opened
