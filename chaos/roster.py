"""Which process is which worker, and which worker holds which rank: read from events alone. Pure.

Only a process that a `worker_spawned` event of this trial named can ever be resolved to, so nothing else can be hit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from chaos.errors import TargetGone
from chaos.faults import Coordinator, Node, RandomRank, Rank, Spare, Store, Target
from phoenix_core.events import Event


class WorkerState(StrEnum):
    STARTING = "starting"
    SPARE = "spare"
    ACTIVE = "active"
    FAILED = "failed"
    EXITED = "exited"


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """What is known of one worker; (pid, start_ticks) is the identity of its process.

    The coordinator, a node's agent and the launcher are described in the same way, without a rank. `others` are the
    processes of the same node, where a fault hits all of it.
    """

    worker: str
    node: str | None
    pid: int
    start_ticks: int
    state: WorkerState = WorkerState.STARTING
    since: int = 0
    rank: int | None = None
    local_rank: int | None = None
    """Which GPU of its node a rank uses, where the runtime tells."""
    others: tuple[WorkerInfo, ...] = ()

    @property
    def lives(self) -> bool:
        return self.state not in (WorkerState.EXITED, WorkerState.FAILED)


class Roster:
    """Built up event by event; `generation` and the ranks are those of the latest world."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerInfo] = {}
        self.ranks: tuple[str, ...] = ()
        self.generation: int | None = None
        self._parked_unknown: set[str] = set()
        self._agents: dict[str, WorkerInfo] = {}
        self._coordinator: WorkerInfo | None = None
        self.launcher: WorkerInfo | None = None
        """The process that the trial has started, which holds the store; told by the trial, since it starts it."""

    def observe(self, event: Event) -> None:
        if event.kind == "worker_spawned" and event.worker is not None:
            self.workers[event.worker] = _described(event, event.worker)
            self._catch_up(event)
        elif event.kind == "coordinator_started":
            self._coordinator = _described(event, "coordinator")
        elif event.kind == "agent_started" and event.node is not None:
            self._agents[event.node] = _described(event, f"agent of {event.node}")
        elif event.kind == "worker_seated" and event.worker in self.workers:
            seated = replace(self.workers[event.worker], local_rank=int(str(event.data["local_rank"])))
            self.workers[event.worker] = seated
        elif event.kind == "world_formed":
            self._form(event)
        elif event.kind == "worker_exited":
            self._set(event, WorkerState.EXITED)
        elif event.kind == "failure_detected":
            self._set(event, WorkerState.FAILED)
        elif event.kind == "spare_parked":
            self._set(event, WorkerState.SPARE)

    def resolve(self, target: Target) -> WorkerInfo:
        """The worker to hit now. Raises TargetGone where it has ended or nobody has that place."""
        match target:
            case Spare():
                return self._longest_parked()
            case Node():
                return self._all_of(target.node)
            case Coordinator():
                return _known(self._coordinator, "no coordinator has been started by this runtime")
            case Store():
                return _known(self.launcher, "the launcher has not been started")
        assert not isinstance(target, RandomRank), "a random rank is drawn when the fault is planned"
        assert isinstance(target, Rank)
        if target.rank >= len(self.ranks):
            raise TargetGone(f"rank {target.rank} has no worker: no world has been formed with it")
        worker = self.workers.get(self.ranks[target.rank])
        if worker is None:
            raise TargetGone(f"rank {target.rank} is held by {self.ranks[target.rank]}, which this trial did not start")
        if not worker.lives:
            raise TargetGone(f"rank {target.rank} is held by {worker.worker}, which has {worker.state.value}")
        return worker

    def _all_of(self, node: str) -> WorkerInfo:
        """Its worker of the lowest rank, else a spare, else its agent; and with it all others."""
        living = [worker for worker in self.workers.values() if worker.node == node and worker.lives]
        living.sort(key=lambda worker: (worker.rank is None, worker.rank, worker.since))
        living += [self._agents[node]] if node in self._agents else []
        if not living:
            raise TargetGone(f"nothing runs on node {node}")
        return replace(living[0], others=tuple(living[1:]))

    def _longest_parked(self) -> WorkerInfo:
        parked = [worker for worker in self.workers.values() if worker.state is WorkerState.SPARE]
        if not parked:
            raise TargetGone("no spare is parked")
        return min(parked, key=lambda worker: worker.since)

    def _form(self, event: Event) -> None:
        ranks = event.data.get("ranks")
        assert isinstance(ranks, list)
        self.ranks, self.generation = tuple(str(worker) for worker in ranks), event.generation
        for rank, name in enumerate(self.ranks):
            worker = self.workers.get(name)
            if worker is not None and worker.state is not WorkerState.EXITED:
                kept = worker.since if worker.state is WorkerState.ACTIVE else event.at
                self.workers[name] = replace(worker, state=WorkerState.ACTIVE, rank=rank, since=kept)

    def _catch_up(self, event: Event) -> None:
        """A quick worker writes of itself before its agent has written that it started it."""
        worker = event.worker or ""
        if worker in self.ranks:
            rank = self.ranks.index(worker)
            self.workers[worker] = replace(self.workers[worker], state=WorkerState.ACTIVE, rank=rank)
        elif worker in self._parked_unknown:
            self._set(event, WorkerState.SPARE)

    def _set(self, event: Event, state: WorkerState) -> None:
        worker = self.workers.get(event.worker or "")
        if worker is None and state is WorkerState.SPARE:
            self._parked_unknown.add(event.worker or "")
        if worker is None or worker.state is WorkerState.EXITED:
            return
        if state is WorkerState.SPARE and worker.state is not WorkerState.STARTING:
            return  # the files are read one after another: a rank that came sooner is not taken back
        self.workers[worker.worker] = replace(worker, state=state, since=event.at)

    def to_json(self) -> list[Mapping[str, object]]:
        """One row per worker, oldest first, as pages show it."""
        return [
            {"worker": w.worker, "node": w.node, "pid": w.pid, "rank": w.rank, "state": w.state.value, "since": w.since}
            for w in self.workers.values()
        ]


def _described(event: Event, name: str) -> WorkerInfo:
    pid, ticks = int(str(event.data["pid"])), int(str(event.data["start_ticks"]))
    return WorkerInfo(worker=name, node=event.node, pid=pid, start_ticks=ticks, since=event.at)


def _known(process: WorkerInfo | None, otherwise: str) -> WorkerInfo:
    if process is None:
        raise TargetGone(otherwise)
    return process
