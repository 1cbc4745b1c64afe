"""Plain `torchrun` as a runtime under test: `python -m chaos.torchrun RUN_DIR WORLD_SIZE -- ARGUMENTS OF TORCHRUN`.

torchrun itself writes no events, and its workers, which know nothing of PHOENIX, write of themselves only: that they
were started, what they restored, which steps they did. The rest can be seen from outside, by their pids: this process
starts torchrun, watches them, and writes it down in the words of a recovery.

    failure_detected     the first worker of a round ended before it was through
    worker_quiesced      each of the others ended too: torchrun starts all anew
    world_formed         all workers of the next round were started
    generation_resumed   all of them have their state, from disk
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.errors import TargetGone
from chaos.injectors.process import open_identified
from chaos.procfs import start_ticks
from chaos.roster import WorkerInfo
from chaos.watch import EventWatch
from phoenix_core.events import Event, EventWriter

Told = tuple[str, dict[str, Any]]
"""An event to be written: its kind and its fields."""

QUIET_S: Final = 0.02


@dataclass
class Rounds:
    """What the events and ends of workers tell about rounds; a round is what PHOENIX calls a generation. Pure."""

    world_size: int
    _started: dict[int, dict[int, str]] = field(default_factory=dict)
    _restored: dict[int, dict[int, int]] = field(default_factory=dict)
    _through: set[str] = field(default_factory=set)
    _failed: set[int] = field(default_factory=set)
    _place: dict[str, tuple[int, int]] = field(default_factory=dict)

    def observe(self, event: Event) -> Iterator[Told]:
        """What a worker's own event tells beyond itself."""
        if event.worker is None or event.rank is None or event.generation is None:
            return
        rank, generation = event.rank, event.generation
        if event.kind == "worker_spawned":
            self._place[event.worker] = (rank, generation)
            started = self._started.setdefault(generation, {})
            started[rank] = event.worker
            if len(started) == self.world_size:
                ranks = [started[rank] for rank in range(self.world_size)]
                joining = list(range(self.world_size))
                yield "world_formed", {"generation": generation, "ranks": ranks, "spares": [], "joining": joining}
        elif event.kind == "state_restored":
            restored = self._restored.setdefault(generation, {})
            restored[rank] = int(str(event.data["boundary"]))
            if len(restored) == self.world_size:
                yield "generation_resumed", {"generation": generation, "step": max(restored.values())}
        elif event.kind == "state_digest":
            self._through.add(event.worker)

    def ended(self, worker: str) -> Iterator[Told]:
        """What the end of a worker's process tells."""
        rank, generation = self._place[worker]
        where = {"worker": worker, "rank": rank, "generation": generation + 1}
        if generation in self._failed:
            yield "worker_quiesced", {**where, "boundary": None}
        elif worker not in self._through:
            self._failed.add(generation)
            yield "failure_detected", {**where, "cause": "exit", "detail": "its process has ended"}


class Observer:
    """Runs torchrun to its end, and writes what can be seen of its workers."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self._events = directory / "events"
        self._writer = EventWriter(self._events / "launcher.jsonl")
        self._rounds = Rounds(world_size)
        self._pidfds: dict[int, WorkerInfo] = {}
        self._stopped = False

    def run(self, arguments: Sequence[str]) -> int:
        """torchrun's exit code; 130 where a signal asked for the end."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._noted)
        self._tell("job_started", world_size=self._rounds.world_size, spares=0)
        torchrun = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *arguments])
        self._tell("agent_started", node="n0", pid=torchrun.pid, start_ticks=start_ticks(torchrun.pid))
        with EventWatch(self._events) as watch:
            while (code := torchrun.poll()) is None:
                growth = watch.fileno()
                watched = [wake, *self._pidfds, *([] if growth is None else [growth])]
                ready, _, _ = select.select(watched, [], [], QUIET_S)
                if wake in ready and {signal.SIGTERM, signal.SIGINT} & set(os.read(wake, 4096)):
                    self._stopped = True
                    torchrun.terminate()
                self._read(watch)
                self._look()
            self._read(watch)
            self._look()
        outcome = "stopped" if self._stopped else "completed" if code == 0 else "failed"
        reason = "" if code == 0 else f"torchrun ended with exit code {code}"
        self._tell("job_finished", outcome=outcome, reason=reason)
        return 130 if self._stopped else 0 if code == 0 else 1

    def _noted(self, *_: object) -> None:
        """The wake-up descriptor carries the number; the loop acts on it."""

    def _read(self, watch: EventWatch) -> None:
        for event in watch.read(skip=("phase_entered", "step_committed")):
            for kind, fields in self._rounds.observe(event):
                self._tell(kind, **fields)
            if event.kind == "worker_spawned" and event.worker is not None:
                self._meet(event, event.worker)

    def _meet(self, event: Event, worker: str) -> None:
        pid, ticks = int(str(event.data["pid"])), int(str(event.data["start_ticks"]))
        known = WorkerInfo(worker=worker, node=event.node, pid=pid, start_ticks=ticks)
        try:
            self._pidfds[open_identified(known)] = known
        except TargetGone:
            self._end(known)

    def _look(self) -> None:
        """Which workers have ended since."""
        ended = select.select(list(self._pidfds), [], [], 0)[0] if self._pidfds else []
        for pidfd in ended:
            self._end(self._pidfds.pop(pidfd))
            os.close(pidfd)

    def _end(self, worker: WorkerInfo) -> None:
        self._tell("worker_exited", worker=worker.worker, node=worker.node, pid=worker.pid, code=exit_code(worker.pid))
        for kind, fields in self._rounds.ended(worker.worker):
            if not self._stopped:
                self._tell(kind, **fields)

    def _tell(self, kind: str, **fields: Any) -> None:
        self._writer.emit(kind, **fields)


def exit_code(pid: int) -> int | None:
    """Of a zombie, negative for a signal; None where its parent has collected it already."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] == "Z":
            return os.waitstatus_to_exitcode(int(fields[49]))
    return None


def main(argv: Sequence[str]) -> int:
    directory, world_size, _, *arguments = argv
    return Observer(Path(directory), int(world_size)).run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
