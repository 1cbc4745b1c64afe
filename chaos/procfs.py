"""What /proc tells of processes. `start_ticks` makes a pid an identity: a recycled pid has another one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """The fields of /proc/PID/stat that we use. `start_ticks` is clock ticks after boot."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    start_ticks: int

    @property
    def ended(self) -> bool:
        """A zombie has ended; only its exit status is left."""
        return self.state in "ZX"


def process_stat(pid: int) -> ProcessStat | None:
    """None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold spaces and parentheses; the last parenthesis ends it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return ProcessStat(
        pid=pid,
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
    )


def start_ticks(pid: int) -> int | None:
    """None where there is no such process, or only a zombie of it."""
    stat = process_stat(pid)
    return None if stat is None or stat.ended else stat.start_ticks


def all_processes() -> list[ProcessStat]:
    """Every process of this machine that this user can see, zombies included."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [stat for stat in map(process_stat, pids) if stat is not None]


def is_foreign(pid: int, ancestor: int) -> bool:
    """Whether there is such a process, and it was not started by `ancestor` at any remove."""
    stat = process_stat(pid)
    if stat is None or stat.ended:
        return False
    while stat is not None and stat.parent > 1:
        if stat.parent == ancestor:
            return False
        stat = process_stat(stat.parent)
    return True


def has_environment(pid: int, entry: str) -> bool:
    """Whether the process was started with `NAME=value` in its environment (False where it may not be read)."""
    try:
        return entry.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
