"""What a job costs in processes and memory, and how a whole node of it is lost: both read from /proc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.scripts.probe import NODE
from chaos.launch import marked
from chaos.procfs import has_environment, process_stat, start_ticks
from chaos.roster import WorkerInfo

OURS: Final = ("chaos.warden", "benchmarks.peers.crew")
"""What the harness adds to every job, and no runtime has to answer for."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of all processes of a job. Memory that several share is divided among them (PSS)."""

    processes: int
    memory_bytes: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def cost(token: str) -> Cost:
    """What the launch with this token takes now."""
    pids = [pid for pid in marked(token) if not any(name in _command(pid) for name in OURS)]
    return Cost(processes=len(pids), memory_bytes=sum(map(_memory, pids)))


def node_of(worker: WorkerInfo, token: str) -> list[WorkerInfo]:
    """Every other process of this worker's node: what the node's first process has started, and what says so itself.

    The first process of a node is the one that the job's launcher started; the launcher itself is the child of the
    process that keeps the launch.
    """
    job = marked(token)
    parents = {pid: stat.parent for pid in job if (stat := process_stat(pid)) is not None}
    line = [pid for pid in _ancestry(worker.pid, parents) if pid in job]
    first = line[max(0, len(line) - 3)]
    below = {pid for pid in job if first in _ancestry(pid, parents)}
    named = {pid for pid in job if worker.node is not None and has_environment(pid, f"{NODE}={worker.node}")}
    found = {pid: start_ticks(pid) for pid in (below | named) - {worker.pid}}
    return [
        WorkerInfo(worker=job[pid], node=worker.node, pid=pid, start_ticks=ticks)
        for pid, ticks in sorted(found.items())
        if ticks is not None
    ]


def _ancestry(pid: int, parents: Mapping[int, int]) -> list[int]:
    line = [pid]
    while line[-1] in parents and parents[line[-1]] not in line:
        line.append(parents[line[-1]])
    return line


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
