"""What the service is told when it starts; the environment is read here and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8642


class SettingsError(Exception):
    """A setting that cannot be used; the message says which one and what to give instead."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One running service: where its data lies, where it listens, how it starts trials.

    `allowed_files` are the only files that a request may name (training data).
    `extra_runtimes` are adapters of others, as `chaos.runtimes.with_extra` takes them.
    `trial_command` is completed with the trial directory; tests put a small stand-in there.
    `poll_s` is how often the directories of active trials are read: often enough for a live page,
    seldom enough that the training next door does not feel it.
    """

    directory: Path
    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    database_url: str | None = None
    max_active: int = 1
    allowed_files: frozenset[str] = frozenset()
    extra_runtimes: str = ""
    poll_s: float = 0.2
    cancel_grace_s: float = 20.0
    trial_command: tuple[str, ...] = (sys.executable, "-m", "chaos.trial", "run")

    def __post_init__(self) -> None:
        if self.host != LOOPBACK:
            raise SettingsError(
                f"the service listens on {LOOPBACK} only, not on {self.host!r}: it has no tokens yet, and whoever "
                f"reaches it can start runs. Use --host {LOOPBACK} and an SSH tunnel from elsewhere."
            )
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"a port is a number from 0 to 65535, not {self.port}")
        if self.max_active < 1 or self.poll_s <= 0:
            raise SettingsError("max_active must be at least 1 and poll_s above 0")

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database."""
        return self.database_url or f"sqlite:///{self.directory / 'phoenix.db'}"

    @property
    def trials(self) -> Path:
        return self.directory / "trials"


def data_directory(given: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """`--dir`, else PHOENIX_HOME, else the user's data directory (XDG)."""
    if given is not None:
        return given.expanduser().absolute()
    if home := environ.get("PHOENIX_HOME"):
        return Path(home).expanduser().absolute()
    base = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "phoenix"
