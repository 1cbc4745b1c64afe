"""A training job that runs only as many steps as it is allowed, and says how long each took.

Two such jobs, both alive and one of them allowed at a time, can be compared step block by step block: whatever the
machine does meanwhile (other load, heat) hits neighbouring blocks of both alike.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean
from types import TracebackType

from chaos.launch import Launch, marked
from chaos.runtimes import Command
from phoenix_core.events import EventTail

POLL_S = 0.05
SNAPSHOT_FIELDS = ("stall_ns", "duration_ns", "copied_bytes", "sent_bytes")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class JobEnded(Exception):
    """The job ended before it had executed the steps; the message has the end of its log."""


@dataclass(frozen=True)
class Snapshots:
    """Of one rank and step: the share of the step that was stall, and bytes."""

    stall_share: float
    copied: float
    sent: float


class GatedJob:
    """One job behind a gate. Use `with`: the exit ends every process of it.

    `command` is given the file that is the gate; the job's events are expected in `directory/events`.
    """

    def __init__(self, directory: Path, *, name: str, ranks: int, command: Callable[[Path], Command]) -> None:
        self.name = name
        self.ranks = ranks
        self.allowed = 0
        directory.mkdir(parents=True)
        self._gate, self._log = directory / "gate", directory / "launcher.log"
        self._open_to(0)
        self._token = uuid.uuid4().hex
        self._launch = Launch(command(self._gate), log=self._log, token=self._token)
        self._tail = EventTail(directory / "events")
        self._committed: dict[int, dict[int, int]] = {}  # step -> rank -> when
        self._snapshots: list[Snapshots] = []  # one of each rank and step of the last block

    def __enter__(self) -> GatedJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._launch.__exit__(kind, error, trace)

    def run(self, steps: int, deadline_s: float) -> float:
        """Let it execute `steps` more steps and wait for them.

        Returns seconds per step: from the commit of the block's first step to that of its last, mean over the ranks.
        The first step is left out, because the ranks notice the open gate at slightly different times. Raises
        JobEnded if the job ends or the deadline passes.
        """
        first, last = self.allowed, self.allowed + steps - 1
        self._snapshots.clear()
        self._open_to(last + 1)
        deadline = time.monotonic() + deadline_s
        while len(self._committed.get(last, {})) < self.ranks:
            self._read()
            if self._launch.poll() is not None or time.monotonic() > deadline:
                raise JobEnded(f"the {self.name} job did not reach step {last}: {self._end_of_log()}")
            time.sleep(POLL_S)
        ranks = range(self.ranks)
        spans = [self._committed[last][rank] - self._committed[first][rank] for rank in ranks]
        return fmean(spans) / (steps - 1) / 1e9

    def snapshots(self) -> Snapshots | None:
        """What each rank's snapshots cost it in a step of the last block, on average; None where the job takes none."""
        if not self._snapshots:
            return None
        return Snapshots(*(fmean(values) for values in zip(*map(astuple, self._snapshots), strict=True)))

    def cpu_s(self) -> float:
        """CPU seconds that all its living processes have used so far."""
        return sum(_cpu_ticks(pid) for pid in marked(self._token)) / TICKS_PER_S

    def _open_to(self, steps: int) -> None:
        temporary = self._gate.with_suffix(".new")
        temporary.write_text(str(steps))
        temporary.replace(self._gate)  # a rank that reads meanwhile sees the old number or the new one
        self.allowed = steps

    def _read(self) -> None:
        for event in self._tail.read():
            if event.kind == "step_committed" and event.step is not None and event.rank is not None:
                self._committed.setdefault(event.step, {})[event.rank] = event.at
                if "stall_ns" in event.data:
                    stall, step, copied, sent = (float(str(event.data[name])) for name in SNAPSHOT_FIELDS)
                    self._snapshots.append(Snapshots(stall / step, copied, sent))

    def _end_of_log(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return " / ".join(text.strip().splitlines()[-3:]) or "its log is empty"


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # it has ended
    return int(fields[11]) + int(fields[12])
