"""What a launch left behind on this machine: processes, shared memory, socket files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """Names of what was left. Processes were ended when they were found; files stay where they are."""

    processes: tuple[str, ...] = ()
    shared_memory: tuple[str, ...] = ()
    sockets: tuple[str, ...] = field(default_factory=tuple)

    @property
    def everything(self) -> tuple[str, ...]:
        return (
            *(f"process {name}" for name in self.processes),
            *(f"shared memory {name}" for name in self.shared_memory),
            *(f"socket {name}" for name in self.sockets),
        )


def shared_memory() -> frozenset[str]:
    """Names in /dev/shm now; take it before a launch to know later what came since."""
    try:
        return frozenset(os.listdir(SHARED_MEMORY))
    except OSError:
        return frozenset()


def find_leaks(
    *, directory: Path, processes: Iterable[str], pids: Iterable[int], memory_before: frozenset[str]
) -> LeakReport:
    """What is left of a launch whose workers had these pids and whose files are under `directory`.

    Shared memory carries no owner after a process has ended, and other jobs of this machine make their own at the same
    time. It counts as ours if it is new and its name holds one of our pids, as torch's and Python's names do.
    """
    new = shared_memory() - memory_before
    own = {str(pid) for pid in pids}
    return LeakReport(
        processes=tuple(processes),
        shared_memory=tuple(sorted(name for name in new if own & set(re.findall(r"\d+", name)))),
        sockets=tuple(sorted(_sockets(directory))),
    )


def _sockets(directory: Path) -> list[str]:
    found = []
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                found.append(path)
    return found
