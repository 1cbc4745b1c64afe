"""The parts of one running service, made together and closed together."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from service.database import Database
from service.executor import Executor
from service.hub import Hub
from service.settings import Settings, SettingsError

LOCK_NAME = "service.lock"


class Service:
    """Owns the data directory while it is open: two services on one directory would start runs twice."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError where the directory cannot be used or another service uses it."""
        self.settings = settings
        self._lock = _own(settings)
        try:
            self.database = _opened(settings)
        except SettingsError:
            os.close(self._lock)
            raise
        self.hub = Hub()
        self.executor = Executor(settings, self.database, self.hub)

    def close(self) -> None:
        self.hub.close()
        self.executor.stop()
        self.database.close()
        os.close(self._lock)


def address_in(directory: Path, *, of: int | None = None) -> str | None:
    """Where the service that uses this data directory answers; None if none is running (or not process `of`)."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # Nobody holds it: what the file says is from an earlier service.
    except BlockingIOError:
        said = json.loads(os.read(descriptor, 4096) or b"{}")
        return str(said["url"]) if said and of in (None, said["pid"]) else None
    finally:
        os.close(descriptor)


def _opened(settings: Settings) -> Database:
    """The database with the newest schema. Raises SettingsError on a full disk or for a file that is none of ours."""
    database = Database(settings.url)
    try:
        database.migrate()
    except (DBAPIError, CommandError, OSError) as error:
        database.close()
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise SettingsError(
            f"cannot use the database {database.engine.url!r}: {reason}; make room if the disk is full "
            "(`phoenix doctor` tells), or choose another data directory with --dir"
        ) from None
    return database


def _own(settings: Settings) -> int:
    directory = settings.directory
    try:
        settings.trials.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        where = address_in(directory) or "an address that is not known"
        raise SettingsError(
            f"another service already uses the data directory {directory} (it answers at {where}); "
            "use that one, stop it, or choose another directory with --dir"
        ) from None
    url = f"http://{settings.host}:{settings.port}"
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"pid": os.getpid(), "url": url}).encode())
    except OSError as error:
        os.close(descriptor)
        raise _unusable(directory, error) from None
    return descriptor


def _unusable(directory: Path, error: OSError) -> SettingsError:
    return SettingsError(f"cannot use the data directory {directory}: {error.strerror}; choose one with --dir")
