"""A virtual environment for each peer, made from its pinned list when it is first needed, and kept between runs.

They lie in the user's cache (`$XDG_CACHE_HOME`, else ~/.cache), named after what is in them: a changed list or another
Python makes a new one, and an unfinished one is never taken for a whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LISTS: Final = Path(__file__).resolve().parent / "requirements"
_DONE: Final = "versions.json"


class EnvironmentMissing(Exception):
    """It is not there and could not be made; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An interpreter that has a peer's packages, and the version of every package that it has."""

    python: str
    versions: Mapping[str, str]

    @property
    def bin(self) -> Path:
        return Path(self.python).parent


def cache() -> Path:
    """Where the environments of this user are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "phoenix" / "peers"


def place(name: str, at: Path | None = None) -> Path:
    """Where the environment for this list and this Python is, or will be."""
    identity = (LISTS / f"{name}.txt").read_bytes() + sys.version.encode()
    return (at or cache()) / f"{name}-{hashlib.sha256(identity).hexdigest()[:12]}"


def existing(name: str) -> Environment | None:
    """The finished environment, or None."""
    directory = place(name)
    try:
        versions = json.loads((directory / _DONE).read_text())
    except (OSError, ValueError):
        return None
    return Environment(python=str(directory / "bin" / "python"), versions=versions)


def ensure(name: str, tell: Callable[[str], None] = print) -> Environment:
    """The environment, made now if need be (minutes, and about 1 GB). Raises EnvironmentMissing."""
    if found := existing(name):
        return found
    directory = place(name)
    tell(f"making the environment of {name} in {directory} (once; about 1 GB)")
    shutil.rmtree(directory, ignore_errors=True)  # an earlier attempt that was broken off
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        venv.create(directory, with_pip=True)
        python = str(directory / "bin" / "python")
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", f"{LISTS / name}.txt"])
        listed = _run([python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"])
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        raise EnvironmentMissing(f"the environment of {name} could not be made: {last}") from error
    versions = {package["name"]: package["version"] for package in json.loads(listed)}
    (directory / _DONE).write_text(json.dumps(versions))
    return Environment(python=python, versions=versions)


def own() -> Environment:
    """The interpreter of this project, for what comes with torch itself."""
    from chaos.provenance import provenance

    return Environment(python=sys.executable, versions=provenance().versions)


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
