"""Reading the ends of files that others write, and whether there is room for more."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# The events of the demo and their copy in the database take a few megabytes.
LEAST_FREE = 32 << 20


def last_lines(path: Path, newest: int = 65536) -> list[str]:
    """The last lines of a file, of its last so many bytes; none if it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - newest))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def trouble_with(directory: Path) -> str:
    """Why runs cannot be kept in this directory (which need not exist yet), in a sentence; empty if they can."""
    nearest = next(path for path in (directory, *directory.parents) if os.path.exists(path))
    choose = "choose another data directory with --dir"
    if not nearest.is_dir():
        return f"{nearest} is a file and no directory; {choose}"
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
        space = os.statvfs(nearest)
    except OSError as error:
        return f"{nearest} cannot be written: {error.strerror}; {choose}"
    free = space.f_bavail * space.f_frsize
    if free < LEAST_FREE:
        return f"{nearest}: only {free >> 20} MiB are free, {LEAST_FREE >> 20} are needed; make room, or {choose}"
    return ""
