"""The production coordinator with a meter: what it spends on a recovery, on heartbeats and on ticks.

Run by benchmarks.scale in a process of its own, so that processor time and memory are the coordinator's alone. It
reads its configuration from standard input, and prints what it measured when SIGTERM ends its job.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from phoenix_core.coordinator import Coordinator
from phoenix_core.events import EventWriter
from phoenix_core.protocol import Announce, Decision, Input, Progressed, Resume, SendPlan, Tick, WorkerExited
from phoenix_core.roster import Job
from phoenix_core.settings import Detection

PARTS = ("announce", "plan", "resume")
"""What ends each part of a decision: from the exit to the new world, to the plan, to the word to go on."""


LEASE_S = 3600.0
"""The stubs of all nodes are one thread: that it is silent while it is busy must not count as the loss of a node."""


def raise_descriptor_limit() -> None:
    """One connection per node: more than the usual soft limit of 1,024 allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_kib(name: str) -> int:
    """A line of /proc/self/status: VmRSS, or VmHWM, the greatest VmRSS since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def forget_peak() -> None:
    # Where the kernel does not allow it, the peak is that of the whole job: too high, never too low.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class Metered(Coordinator):
    """Stamps the processor time of the process where a recovery passes from one part to the next."""

    def __init__(self, job: Job, *, token: str, heartbeats: int) -> None:
        """Heartbeats are measured in batches of `heartbeats`, without the ticks between them."""
        super().__init__(job, token=token, events=EventWriter(None))
        self.recoveries: list[dict[str, float]] = []
        self.base_kib = memory_kib("VmRSS")
        self.batches: list[float] = []
        self._heartbeats, self._beats, self._began = heartbeats, 0, 0.0
        self.ticks, self.ticks_s = 0, 0.0
        self._last = 0.0

    def _tell(self, event: Input) -> None:
        match event:
            case WorkerExited():
                forget_peak()
                self._last = time.process_time()
                self.recoveries.append({})
                super()._tell(event)
            case Tick():
                began = time.process_time()
                super()._tell(event)
                self.ticks += 1
                self.ticks_s += time.process_time() - began
            case Progressed():
                if self._beats % self._heartbeats == 0:
                    self._began = time.process_time() - self.ticks_s
                super()._tell(event)
                self._beats += 1
                if self._beats % self._heartbeats == 0:
                    self.batches.append(time.process_time() - self.ticks_s - self._began)
            case _:
                super()._tell(event)

    def _apply(self, decisions: Iterable[Decision]) -> None:
        decided = list(decisions)
        super()._apply(decided)
        for part, kind in zip(PARTS, (Announce, SendPlan, Resume), strict=True):
            if self.recoveries and any(isinstance(decision, kind) for decision in decided):
                now = time.process_time()
                self.recoveries[-1][part], self._last = now - self._last, now
                self.recoveries[-1]["peak_kib"] = memory_kib("VmHWM")

    def report(self) -> dict[str, Any]:
        return {
            "recoveries": self.recoveries,
            "base_kib": self.base_kib,
            "heartbeat_s": [seconds / self._heartbeats for seconds in self.batches],
            "tick_s": self.ticks_s / max(1, self.ticks),
        }


async def serve(config: dict[str, Any]) -> dict[str, Any]:
    detection = Detection(lease_s=LEASE_S)
    job = Job(rank_nodes=tuple(config["rank_nodes"]), spare_nodes=tuple(config["spare_nodes"]), detection=detection)
    coordinator = Metered(job, token=config["token"], heartbeats=config["heartbeats"])
    end = await coordinator.run(socket.socket(fileno=config["control_fd"]))
    return {**coordinator.report(), "outcome": end.outcome, "reason": end.reason}


if __name__ == "__main__":
    raise_descriptor_limit()
    print(json.dumps(asyncio.run(serve(json.load(sys.stdin)))))
