"""Runs a job under `phoenix run`, strikes it when its events say so, and reads what became of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from phoenix_core.events import Event, EventTail, EventWriter, read_events
from phoenix_core.timeline import Recovery, recoveries

SMALL = Path(__file__).parent / "scripts" / "small.py"
DEADLINE_S = 110.0


@dataclass
class Strike:
    """`sig` to the worker of `rank` once it enters `phase` of a step from `step` on (and a spare is parked).

    The phase "between" is entered with the commit of a step.
    """

    rank: int
    step: int
    phase: str
    sig: signal.Signals = signal.SIGKILL
    parked: bool = False


@dataclass
class Watched:
    """What the events have told so far."""

    pids: dict[str, int] = field(default_factory=dict)
    coordinator: int = 0
    """Its process, whichever it is now."""
    ranks: list[str] = field(default_factory=list)
    parked: set[str] = field(default_factory=set)

    def learn(self, event: Event) -> None:
        if event.kind == "coordinator_started":
            self.coordinator = int(str(event.data["pid"]))
        elif event.kind == "worker_spawned" and event.worker is not None:
            self.pids[event.worker] = int(str(event.data["pid"]))
        elif event.kind == "world_formed":
            ranks = event.data["ranks"]
            assert isinstance(ranks, list)
            self.ranks = ranks
            self.parked -= set(ranks)
        elif event.kind == "spare_parked" and event.worker is not None:
            self.parked.add(event.worker)
        elif event.kind == "worker_exited" and event.worker is not None:
            self.parked.discard(event.worker)


@dataclass(frozen=True)
class Finished:
    code: int
    stderr: str
    events: list[Event]

    @cached_property
    def recoveries(self) -> list[Recovery]:
        return recoveries(self.events)

    @property
    def losses(self) -> dict[tuple[int, int], float]:
        """Loss by rank and step; where a step was committed twice, both must have been equal."""
        found: dict[tuple[int, int], float] = {}
        for event in self.events:
            if event.kind == "step_committed":
                assert event.rank is not None and event.step is not None
                loss = float(str(event.data["loss"]))
                assert found.setdefault((event.rank, event.step), loss) == loss
        return found

    @property
    def buffers(self) -> dict[int, str]:
        """Digest of each rank's own buffers."""
        return {e.rank: str(e.data["buffers"]) for e in self.events if e.kind == "state_digest" and e.rank is not None}

    @property
    def digests(self) -> dict[int, str]:
        return {e.rank: str(e.data["digest"]) for e in self.events if e.kind == "state_digest" and e.rank is not None}


def launch(
    run_dir: Path, *arguments: str, flags: Sequence[str] = (), script: Path = SMALL, prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-m", "phoenix_core", "run", "--run-dir", str(run_dir), *flags]
    return subprocess.Popen([*command, str(script), *arguments], stderr=subprocess.PIPE, text=True)


def run(
    run_dir: Path,
    *arguments: str,
    strikes: Sequence[Strike] = (),
    flags: Sequence[str] = ("--nnodes", "4", "--spares", "1"),
    on_event: Callable[[Event, Watched], None] | None = None,
    script: Path = SMALL,
    prefix: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
) -> Finished:
    """The whole job. Every strike must have hit, or the test that asked for it proves nothing."""
    process = launch(run_dir, *arguments, flags=flags, script=script, prefix=prefix)
    waiting = list(strikes)
    watched = Watched()
    tail = EventTail(run_dir / "events")
    injector = EventWriter(run_dir / "events" / "injector.jsonl")
    deadline = time.monotonic() + deadline_s
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, "the job did not end in time"
            for event in tail.read():
                watched.learn(event)
                if on_event is not None:
                    on_event(event, watched)
                if waiting and (watched.parked or not waiting[0].parked) and _due(waiting[0], event):
                    _hit(waiting.pop(0), watched, injector, f"f{len(strikes) - len(waiting)}")
            time.sleep(0.001)
    finally:
        injector.close()
        if process.poll() is None:
            process.terminate()
        stderr = process.communicate()[1]
    assert not waiting, f"never struck: {waiting}"
    return Finished(process.returncode, stderr, read_events(run_dir / "events"))


def _due(strike: Strike, event: Event) -> bool:
    entered = event.kind == "phase_entered" and event.data["phase"] == strike.phase
    between = event.kind == "step_committed" and strike.phase == "between"
    return (entered or between) and event.rank == strike.rank and event.step is not None and event.step >= strike.step


def _hit(strike: Strike, watched: Watched, injector: EventWriter, fault: str) -> None:
    worker = watched.ranks[strike.rank]
    injector.emit("fault_injected", worker=worker, rank=strike.rank, fault=fault)
    watched.parked.clear()  # the next strike waits for the next spare
    os.kill(watched.pids[worker], strike.sig)
