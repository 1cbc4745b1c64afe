"""What several test packages need: waiting with a deadline, and what a test may have left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

MARKER: Final = "PHOENIX_TEST_MARKER"
"""Environment variable by which a process is known as one of a test, also after its parent died."""


def wait_until(condition: Callable[[], T], what: str, deadline_s: float = 20.0) -> T:
    """Poll until `condition()` is true and return it; after the deadline fail and say what was awaited."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {deadline_s} s in vain: {what}")
        time.sleep(0.01)
    return value


@dataclass(frozen=True, kw_only=True)
class Belongings:
    """Everything that a process test could leave behind, as comparable values."""

    processes: frozenset[tuple[int, str]]
    descriptors: frozenset[tuple[int, str]]
    shared_memory: frozenset[str]
    threads: frozenset[str]

    def beyond(self, before: Belongings) -> list[str]:
        """One line for each thing that is here and was not there before."""
        return [
            *(f"process {pid}: {line}" for pid, line in sorted(self.processes - before.processes)),
            *(f"file descriptor {fd}: {target}" for fd, target in sorted(self.descriptors - before.descriptors)),
            *(f"shared memory /dev/shm/{name}" for name in sorted(self.shared_memory - before.shared_memory)),
            *(f"thread {name}" for name in sorted(self.threads - before.threads)),
        ]


def belongings(marker: str) -> Belongings:
    """What exists now: marked or descended processes, and this process's descriptors, memory and threads."""
    return Belongings(
        processes=_processes(marker),
        descriptors=_descriptors(),
        shared_memory=_shared_memory(),
        threads=frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate()),
    )


def _processes(marker: str) -> frozenset[tuple[int, str]]:
    wanted = f"{MARKER}={marker}".encode()
    parents: dict[int, int] = {}
    marked: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue  # it has ended; its parent has not asked how
            parents[int(entry.name)] = int(parent)
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                marked.add(int(entry.name))
        except OSError:
            continue  # it ended while we looked, or belongs to somebody else
    own = {pid for pid in parents if pid in marked or _descends(pid, parents)} - {os.getpid()}
    return frozenset((pid, _command(pid)) for pid in own)


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "(ended)"


def _descriptors() -> frozenset[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
        if not target.startswith("/proc/"):
            found.add((int(name), target))
    return frozenset(found)


def _shared_memory() -> frozenset[str]:
    """Entries of ours; those of browsers and of other people's programs are none of our business."""
    directory = Path("/dev/shm")
    if not directory.is_dir():
        return frozenset()
    return frozenset(path.name for path in directory.iterdir() if path.name.startswith(("torch_", "phoenix", "psm_")))
