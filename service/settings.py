"""What the service is told when it starts; the environment is read here and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOOPBACKS = frozenset({"127.0.0.1", "::1"})
DEFAULT_PORT = 8642
# A hundred years: what is longer has no date any more.
MOST_DAYS = 36_500


class SettingsError(Exception):
    """A setting that cannot be used; the message says which one and what to give instead."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One running service: where its data lies, where it listens, how it starts trials.

    `also_named` are names by which a proxy on this machine hands requests of others on.
    `allowed_files` are the only files that a request may name (training data).
    `repository` is the git checkout of whose revisions runs may ask for.
    `extra_runtimes` are adapters of others, as `chaos.runtimes.with_extra` takes them.
    `trial_command` is completed with the trial directory; tests put a small stand-in there.
    `poll_s` is how often the directories of active trials are read: often enough for a live page,
    seldom enough that the training next door does not feel it. A service of which nothing is heard for `lease_s` loses
    its runs to others on the same database; long enough to be updated and started again. Runs that ended longer than
    `keep_days` ago lose their events (None: never).
    """

    directory: Path
    host: str = LOOPBACK
    also_named: frozenset[str] = frozenset()
    port: int = DEFAULT_PORT
    database_url: str | None = None
    max_active: int = 1
    allowed_files: frozenset[str] = frozenset()
    extra_runtimes: str = ""
    repository: Path | None = None
    poll_s: float = 0.2
    cancel_grace_s: float = 20.0
    lease_s: float = 300.0
    keep_days: float | None = None
    trial_command: tuple[str, ...] = (sys.executable, "-m", "chaos.trial", "run")

    def __post_init__(self) -> None:
        if self.database_url is not None:
            from service.database import DatabaseError, checked_url  # the command line starts faster without

            try:
                checked_url(self.database_url)
            except DatabaseError as error:
                raise SettingsError(f"--database: {error}") from None
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"a port is a number from 0 to 65535, not {self.port}")
        if self.max_active < 1 or self.poll_s <= 0 or self.lease_s <= 0:
            raise SettingsError("max_active must be at least 1, poll_s and lease_s above 0")

    @property
    def local(self) -> bool:
        """It can be reached from this machine only: each request needs a token otherwise."""
        return self.host in LOOPBACKS and not self.also_named

    @property
    def names(self) -> frozenset[str] | None:
        """Host names by which it may be called (None: any)."""
        return LOOPBACKS | {"localhost"} | self.also_named if self.host in LOOPBACKS else None

    @property
    def address(self) -> str:
        """Where programs on this machine reach it: an address that means all of them is none to connect to."""
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database."""
        return self.database_url or f"sqlite:///{self.database_file}"

    @property
    def database_file(self) -> Path:
        """Where the database is unless a URL says otherwise."""
        return self.directory / "phoenix.db"

    @property
    def trials(self) -> Path:
        return self.directory / "trials"


def version() -> str:
    """Of PHOENIX, as it is installed."""
    try:
        return metadata.version("phoenix-resilience")
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a checkout that is not installed


def data_directory(given: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """`--dir`, else PHOENIX_HOME, else the user's data directory (XDG)."""
    if given is not None:
        return given.expanduser().absolute()
    if home := environ.get("PHOENIX_HOME"):
        return Path(home).expanduser().absolute()
    base = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "phoenix"
