"""Whether the process of a trial lives, without any gap between starting it and knowing it.

The service locks a file of the trial directory before it starts the process and hands the open
file down. The lock is the kernel's: it is held exactly as long as the process lives, also when
the service is killed between the two, and no recycled pid can be mistaken for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chaos.procfs import start_ticks
from chaos.record import TrialDirectory

NAME = "lock"


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """The locked file's descriptor, to be inherited. Raises BlockingIOError where the process lives already."""
    descriptor = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def lives(directory: Path) -> bool:
    """Also for a trial that someone started by hand, which has a pid file and no lock."""
    try:
        with locked(directory):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False  # The directory is gone, and a trial without its directory cannot go on.
    return TrialDirectory(directory).is_alive()


def send(directory: Path, number: signal.Signals) -> bool:
    """Signal the trial's process if it lives. A pidfd keeps a recycled pid from being hit."""
    identity = _identity(directory)
    if identity is None:
        return False
    pid, ticks = identity
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if start_ticks(pid) == ticks:
                signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        data = json.loads((directory / "pid").read_bytes())
        return int(data["pid"]), int(data["start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
