"""The parts of one running service, made together and closed together."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from service import queue, tokens
from service.callers import Role
from service.clockwork import Clockwork
from service.database import Database, DatabaseError
from service.executor import Executor
from service.feed import Feed
from service.gate import Gate
from service.host import Host
from service.hub import Hub
from service.indexer import Indexer
from service.known import Known, repository_of
from service.loops import Loop
from service.metrics import Metrics
from service.settings import LOOPBACK, LOOPBACKS, Settings, SettingsError
from service.webhooks import Postman

LOCK_NAME = "service.lock"
# How late a schedule may fire, and a message be sent, while nothing else is in the way.
CLOCK_S = 0.5
# How late a trial of the command line may be in the history.
INDEX_S = 2.0


class Service:
    """Owns the data directory while it is open: two services on one directory would start runs twice."""

    def __init__(self, settings: Settings, metrics: Metrics | None = None) -> None:
        """Raises SettingsError where the directory cannot be used or another service uses it."""
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.gate = Gate(open_house=settings.local)
        self._lock = _own(settings, self.gate.secret)
        self.hub = Hub()
        self.host = Host()
        try:
            self.database = opened_database(settings)
            self.executor = self._executor()
        except SettingsError:
            os.close(self._lock)
            raise
        self.metrics.observe(self.database, settings)
        self.feed = Feed(self.database)
        self.known = Known(database=self.database, repository=repository_of(settings.repository))
        self.indexer = Indexer(self.database, settings.directory)
        self.clockwork = Clockwork(settings, self.database, self._compare)
        self.postman = Postman(self.database)
        self._loops = (
            Loop("clockwork", CLOCK_S, self.clockwork.tick),
            Loop("postman", CLOCK_S, self.postman.tick),
            Loop("indexer", INDEX_S, self.indexer.tick),
        )

    def start(self) -> None:
        """Follow trials, fire schedules, deliver messages: from now on by threads of its own."""
        self.executor.start()
        for loop in self._loops:
            loop.start()
        threading.Thread(target=_warm_up, name="phoenix-warm-up", daemon=True).start()

    def _executor(self) -> Executor:
        """Raises SettingsError, having closed the database, where this service cannot say that it is there."""
        try:
            _refuse_strangers(self.settings, self.database)
            name = queue.identity(self.settings.directory)
            return Executor(self.settings, self.database, self.hub, name)
        except DBAPIError as error:
            raise _unusable_database(self.database, error) from None
        except OSError as error:
            self.database.close()
            raise _unusable(self.settings.directory, error) from None
        except SettingsError:
            self.database.close()
            raise

    def _compare(self, base: str, head: str) -> dict[str, object]:
        return self.known.compare(base, head).to_json()

    def close(self) -> None:
        self.hub.close()
        self.postman.stopping = True
        for loop in self._loops:
            loop.stop()
        self.postman.close()
        self.executor.stop()
        self.database.close()
        os.close(self._lock)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A service that runs on a data directory. `secret` is a token for whoever can read that directory."""

    pid: int
    url: str
    secret: str


def running_in(directory: Path) -> Running | None:
    """The service that uses this data directory now."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # Nobody holds it: what the file says is from an earlier service.
    except BlockingIOError:
        said = json.loads(os.read(descriptor, 4096) or b"{}")
        return Running(pid=said["pid"], url=str(said["url"]), secret=str(said.get("secret", ""))) if said else None
    finally:
        os.close(descriptor)


def address_in(directory: Path) -> str | None:
    """Where the service that uses this data directory answers; None if none is running."""
    running = running_in(directory)
    return None if running is None else running.url


def _refuse_strangers(settings: Settings, database: Database) -> None:
    """Raises SettingsError for a service that other machines reach and that nobody could administer."""
    if settings.local:
        return
    with database.read() as session:
        if tokens.count_valid(session, Role.ADMIN) > 0:
            return
    said = f"that is called {' and '.join(sorted(settings.also_named))} " if settings.also_named else ""
    without = ["serve without --name"] if settings.also_named else []
    instead = " and ".join(without + ([] if settings.host in LOOPBACKS else [f"use --host {LOOPBACK}"]))
    # The data directory of whoever calls, and SQLite in it, would be the ones of a command that does not say so.
    where = f"--dir {settings.directory}" if settings.database_url is None else "--database URL, the same as here"
    raise SettingsError(
        f"a service on {settings.host} {said}can be reached by others, so each request needs a token, and there is "
        f"none of an admin yet. Make one first: phoenix tokens create NAME --role admin {where} (or {instead})"
    )


def opened_database(settings: Settings) -> Database:
    """The database with the newest schema. Raises SettingsError on a full disk or for a file that is none of ours."""
    try:
        database = Database(settings.url)
    except DatabaseError as error:
        raise SettingsError(str(error)) from None
    try:
        database.migrate()
    except (DBAPIError, CommandError, OSError) as error:
        raise _unusable_database(database, error) from None
    return database


def _unusable_database(database: Database, error: Exception) -> SettingsError:
    """Closes it, too."""
    database.close()
    return SettingsError(what_to_do(database, error))


def what_to_do(database: Database, error: Exception) -> str:
    """About a database that cannot be used: which one, why, and what helps."""
    reason = str(error.orig if isinstance(error, DBAPIError) else error).strip()
    if isinstance(error.__cause__, ResolutionError):  # of the revision that the database names
        reason = f"it was made by a newer PHOENIX ({reason})"
        advice = "update this one, or choose another database with --database or another data directory with --dir"
    elif "file is not a database" in reason:
        reason = "it is no database"
        advice = "move the file away if nobody needs it, or choose another data directory with --dir"
    elif database.postgres:
        advice = "is the server running, and the name and password right? Choose with --database URL"
    elif "readonly" in reason or "unable to open" in reason:
        advice = (
            "this user must be able to write the file and its directory, where SQLite keeps two more: "
            "change that, or choose another data directory with --dir"
        )
    elif "locked" in reason:
        advice = "another program holds it: end that or wait, or choose another data directory with --dir"
    else:
        advice = "make room if the disk is full (`phoenix doctor` tells), or choose another data directory with --dir"
    return f"cannot use the database {database.engine.url!r}: {reason}; {advice}"


def _own(settings: Settings, secret: str) -> int:
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
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"pid": os.getpid(), "url": settings.address, "secret": secret}).encode())
    except OSError as error:
        os.close(descriptor)
        raise _unusable(directory, error) from None
    return descriptor


def _unusable(directory: Path, error: OSError) -> SettingsError:
    return SettingsError(f"cannot use the data directory {directory}: {error.strerror}; choose one with --dir")


def _warm_up() -> None:
    """Else the first reader of a history waits a second for what the statistics import."""
    for library in ("scipy.stats", "ruptures"):
        with contextlib.suppress(ImportError):  # who needs it says so
            importlib.import_module(library)
