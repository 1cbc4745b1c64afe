"""One job of a contender: wait until it trains, break it, see it recover, again; everything is kept as events."""

from __future__ import annotations

import contextlib
import os
import random
import select
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Final

from benchmarks.peers.contenders import Contender, phoenix, steady, torchft
from benchmarks.peers.entries import WHOLE_NODES
from benchmarks.peers.environments import Environment
from benchmarks.peers.nodes import Cost, cost, node_of
from benchmarks.peers.observed import Sample, holders, sample
from chaos.cluster.client import HandClient
from chaos.cluster.layout import NETWORK_FILE
from chaos.errors import ChaosError
from chaos.faults import PlannedFault
from chaos.injectors import INJECTORS, Pending
from chaos.injectors.network import network_injectors
from chaos.launch import Launch
from chaos.record import PartDirectory
from chaos.roster import WorkerInfo
from chaos.runtimes import Job
from chaos.scenario import Cluster
from phoenix_core.events import Event, EventTail, EventWriter

RANKS: Final = 4
FIRST: Final = 12
"""Steps before the first fault: there is a checkpoint, and whoever learns timeouts has learned them."""
SPACING: Final = 12
"""Least number of steps of the whole world between a recovery and the next fault, which comes at full strength only."""
TAIL: Final = 4
RECENT: Final = 500
"""Events before a fault that are looked at again and again meanwhile: a few steps of all ranks."""
START_S, PATIENCE_S, POLL_S = 120.0, 45.0, 0.05
_LASTING: Final = {"ttl_s": 3600}
_PLANNED: Final[Mapping[str, Mapping[str, object]]] = {
    "kill": {"kind": "process_kill"},
    "node": {"kind": "process_kill"},
    "hang": {"kind": "process_stop", "params": _LASTING},
    "partition": {"kind": "network_partition", "params": {"shape": "isolate", "plane": "both", **_LASTING}},
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """A fault to come: `fraction` of a step after the rank has begun one."""

    kind: str
    rank: int
    fraction: float


def orders(kind: str, count: int, seed: int) -> list[Order]:
    """The same for every contender. The first node keeps the rendezvous of most of them: nodes are lost from the second
    on, ranks are killed wherever the draw falls."""
    draw = random.Random(f"{seed}-{kind}")
    first = 1 if kind in WHOLE_NODES else 0
    return [Order(kind=kind, rank=draw.randrange(first, RANKS), fraction=draw.random()) for _ in range(count)]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all jobs of a measurement share."""

    seed: int = 0
    options: tuple[str, ...] = ()
    """Of the workload."""


@dataclass(kw_only=True)
class Record:
    """What one job left. `trouble`: why it did not get as far as it should have."""

    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    cost: Cost | None = None
    trouble: str = ""


class Stand:
    """A running job and what is known of it. Use `with`: the exit ends everything that it started."""

    def __init__(
        self, contender: Contender, environment: Environment, directory: Path, setup: Setup, *, isolated: bool
    ) -> None:
        self.contender = contender
        part = PartDirectory(path=directory)
        for made in (part.events, part.logs):
            made.mkdir(parents=True, exist_ok=True)
        cluster = Cluster(
            nodes=RANKS,
            ranks_per_node=1,
            spares=contender.spares or (contender.standby if isolated else 0),
            isolation="namespaces" if isolated else "none",
        )
        workload = ("--steps", "100000", "--seed", str(setup.seed), *setup.options)
        self._job = Job(workload=workload, steps=100000, seed=setup.seed, cluster=cluster, directory=part)
        self._log = part.logs / "launcher.log"
        self._stack = contextlib.ExitStack()
        # Before the job: the hand needs the description of the nodes only when it is told to do something.
        hand = self._stack.enter_context(HandClient(part.path / NETWORK_FILE)) if isolated else None
        self._injectors = {**INJECTORS, **(network_injectors(hand) if hand is not None else {})}
        self.token = uuid.uuid4().hex
        command = contender.command(self._job, environment)
        self._launch = self._stack.enter_context(Launch(command, log=self._log, token=self.token))
        self._tail = EventTail(part.events)
        self._writer = EventWriter(part.events / "injector.jsonl")
        self._watched: dict[str, int] = {}
        self.events: list[Event] = []
        self._committed: dict[int, int] = {}
        self._workers: dict[str, WorkerInfo] = {}

    def __enter__(self) -> Stand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        for descriptor in self._watched.values():
            os.close(descriptor)
        self._stack.__exit__(kind, error, trace)

    @property
    def progress(self) -> int:
        """The newest step that every rank has committed."""
        return min(self._committed.get(rank, -1) for rank in range(RANKS))

    def wait(self, condition: Callable[[], bool], seconds: float, poll_s: float = POLL_S) -> bool:
        """Until the condition holds; False where the time is up or the job has ended before."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self._launch.poll() is not None
            self._read()
            if condition():
                return True
            if ended or time.monotonic() >= deadline:
                return False
            watched = list(self._watched.values())
            select.select([self._launch.fileno(), *watched], [], [], poll_s)
            self._note_exits()

    def at_full_strength(self) -> bool:
        """Whether there are as many spares again as there were."""
        if self.contender.start is phoenix:
            kinds = [event.kind for event in self.events]
            return kinds.count("spare_parked") >= kinds.count("spare_assigned") + self.contender.spares
        # Where a spare trains along, it commits what the others do.
        last = [event for event in self.events[-RECENT:] if event.kind == "step_committed"]
        steps: dict[int | None, set[str | None]] = {}
        for event in last:
            steps.setdefault(event.step, set()).add(event.worker)
        computing = RANKS + (self.contender.spares if self.contender.start is torchft else 0)
        return any(len(workers) >= computing for step, workers in steps.items() if step == self.progress)

    def trouble(self, seconds: float) -> str:
        """Why a wait of so many seconds was in vain."""
        ended = self._launch.poll()
        if ended is None:
            return f"not within {seconds:.0f} s"
        return f"the job ended with code {ended.code}{_last_word(self._log)}"

    def steady(self) -> None:
        """Say that the job trains, to whoever was to come later."""
        steady(self._job).touch()

    def inject(self, order: Order) -> Event:
        """Apply it. Raises ChaosError where there is nothing to hit."""
        fault = f"{order.kind}-{len(self.events)}"
        worker = self._moment(order)
        if order.kind == "node":
            worker = replace(worker, others=tuple(node_of(worker, self.token)))
        document = {**_PLANNED[order.kind], "target": {"rank": order.rank}, "trigger": {"now": True}}
        planned = PlannedFault.from_json(document, id=fault)
        active = self._injectors[planned.kind].inject(planned, worker)
        assert not isinstance(active, Pending), "these faults happen at once"
        active.close()  # the end of the job is the end of the fault
        return self._writer.emit("fault_injected", **active.injection.event_fields())  # type: ignore[arg-type]

    def _moment(self, order: Order) -> WorkerInfo:
        """Wait for the instant; who has the rank then."""
        since = time.monotonic_ns()
        self.wait(lambda: self._began(order.rank) > since, PATIENCE_S, poll_s=0.005)
        time.sleep(order.fraction * self._step_s())
        self._read()
        holder = holders(self.events).get(order.rank, "")
        if holder not in self._workers:
            raise ChaosError(f"nobody is known to have rank {order.rank}")
        return replace(self._workers[holder], rank=order.rank)

    def _began(self, rank: int) -> int:
        """When the rank last began a step."""
        begun = (e.at for e in reversed(self.events) if e.rank == rank and e.data.get("phase") == "forward")
        return next(begun, 0)

    def _step_s(self) -> float:
        done = [event for event in self.events if event.kind == "step_committed"][-5 * RANKS :]
        return median(float(str(event.data["duration_ns"])) for event in done) / 1e9

    def _read(self) -> None:
        new = self._tail.read()
        for event in new:
            if event.kind == "worker_spawned" and event.worker is not None:
                self._meet(event.worker, event)
            elif event.kind == "step_committed" and event.rank is not None and event.step is not None:
                self._committed[event.rank] = max(event.step, self._committed.get(event.rank, -1))
        self.events += new

    def _meet(self, worker: str, event: Event) -> None:
        pid, ticks = int(str(event.data["pid"])), int(str(event.data["start_ticks"]))
        self._workers[worker] = WorkerInfo(worker=worker, node=event.node, pid=pid, start_ticks=ticks)
        if self.contender.start is not phoenix:  # whose agents say themselves who has ended
            with contextlib.suppress(ProcessLookupError):
                self._watched[worker] = os.pidfd_open(pid)

    def _note_exits(self) -> None:
        ready, _, _ = select.select(list(self._watched.values()), [], [], 0)
        for worker, descriptor in list(self._watched.items()):
            if descriptor in ready:
                os.close(self._watched.pop(worker))
                self._writer.emit("worker_exited", worker=worker, pid=self._workers[worker].pid, code=None)


def undisturbed(stand: Stand, steps: int) -> Record:
    """So many steps without a fault: the twin of all disturbed runs, and what the job costs."""
    record = Record()
    if stand.wait(lambda: stand.progress >= steps // 2, START_S):
        record.cost = cost(stand.token)
    if not stand.wait(lambda: stand.progress >= steps - 1, START_S):
        record.trouble = stand.trouble(START_S)
    record.events = stand.events
    return record


def disturbed(stand: Stand, faults: Sequence[Order], until: float) -> Record:
    """One fault after the other, as long as the job recovers and the clock (monotonic) is before `until`."""
    record = Record(events=stand.events)
    if not stand.wait(lambda: stand.progress >= FIRST, START_S):
        record.trouble = stand.trouble(START_S)
        return record
    stand.steady()
    for number, order in enumerate(faults):
        if number and time.monotonic() > until:
            break
        found = _one(stand, order)
        record.samples.append(found)
        if found.recovery_s is None:
            break
        begun = stand.progress
        if not stand.wait(partial(_ready, stand, begun + SPACING), START_S):
            break
    return record


def _ready(stand: Stand, step: int) -> bool:
    return stand.progress >= step and stand.at_full_strength()


def _one(stand: Stand, order: Order) -> Sample:
    contender = stand.contender
    patience = contender.patience_s.get(order.kind, PATIENCE_S)
    try:
        fault = stand.inject(order)
    except ChaosError as error:
        return Sample(
            kind=order.kind, rank=order.rank, goes_on_s=None, recovery_s=None, phases={}, lost_steps=None,
            why=f"it could not be injected: {error}",
        )  # fmt: skip
    begin = max(0, len(stand.events) - RECENT)

    def now(why: str = "") -> Sample:
        return sample(stand.events[begin:], fault, kind=order.kind, size=RANKS, why=why)

    alone = order.kind in contender.alone
    recovered = stand.wait(lambda: (now().goes_on_s if alone else now().recovery_s) is not None, patience)
    if alone and recovered:
        return now(contender.alone[order.kind])
    why = "" if recovered else stand.trouble(patience)
    reached = stand.progress
    stand.wait(lambda: stand.progress >= reached + TAIL, PATIENCE_S if recovered else 0.0)
    return now(why)


def _last_word(log: Path) -> str:
    """The last line of the log that tells of an error, else the last one."""
    lines = [line.strip() for line in (log.read_text(errors="replace") if log.exists() else "").splitlines()]
    lines = [line for line in lines if line]
    told = [line for line in lines if "Error" in line or "error:" in line] or lines
    return f": {told[-1][:160]}" if told else ""
