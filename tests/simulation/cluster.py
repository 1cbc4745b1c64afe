"""Nodes, their agents and the coordinator around the production membership, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from phoenix_core.coordinator import Coordinator, input_of
from phoenix_core.ledger import Ledger
from phoenix_core.protocol import (
    Decision,
    End,
    Input,
    NodeLost,
    Progressed,
    Record,
    Resume,
    StopRequested,
    Tick,
)
from phoenix_core.reachability import PROBE_S
from phoenix_core.roster import Job
from phoenix_core.succession import Succession
from phoenix_core.witness import Account, Witness
from phoenix_core.world import World
from phoenix_core.xids import Action
from tests.simulation.engine import Clock, Link
from tests.simulation.faults import Fault, Plan
from tests.simulation.groups import Group
from tests.simulation.invariants import Checks
from tests.simulation.process import Process
from tests.simulation.truth import undisturbed
from tests.simulation.worker import Worker

TICK_S: Final = 0.25
IDLE_TICK_S: Final = 2.0

WORK_S: Final = {
    "start": (0.2, 1.0), "build": (0.02, 0.3), "forward": (0.01, 0.03), "backward": (0.005, 0.02),
    "optimizer": (0.003, 0.02), "put_back": (0.002, 0.01), "epilogue": (0.01, 0.1), "exit": (0.005, 0.05),

}  # fmt: skip
"""How long the parts of a worker's own work take: least and most, in seconds."""


class SimulatedCoordinator(Coordinator):
    """The production coordinator without its sockets: what it decides to send goes to the cluster."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._found = cluster.ledger
        self.membership = Succession(job, self._found)
        self.cluster = cluster
        self.ended: End | None = None
        self.dead = False
        self.dies_after: int | None = None
        """So many acts (a ledger written, a message sent) before its process ends."""
        self._announced = None
        self._started = False
        self._told: dict[str, list[Account]] = {}
        self._early: list[Input] = []
        self._sent = 0

    def begin(self) -> None:
        self._started = True
        self._decided(Tick(), self.membership.start(), 0)

    def hello(self, node: str, accounts: list[dict[str, Any]]) -> None:
        if self.dead or self.ended is not None:
            return
        if node in self.membership.lost_nodes:
            self._to_node(node, {"op": "end"})
            return
        self._told[node] = [Account.from_json(account) for account in accounts]
        every = set(self.cluster.nodes) - set(self.membership.lost_nodes)
        if not self._started and set(self._told) >= every:
            self.take_over()

    def take_over(self) -> None:
        if self.dead or self._started or self.ended is not None:
            return
        if self._act():
            return
        self._started = True
        decisions = self.membership.take_over(self._told, self.cluster.clock.now)
        self.cluster.checks.coordinator_took_over(decisions)
        self._decided(Tick(), decisions, self.membership.generation)
        for event in self._early:
            self._tell(event)

    @property
    def leads(self) -> bool:
        return self._started and not self.dead

    def _act(self) -> bool:
        """One more act; true if the process ends right before it."""
        if self.dies_after is not None and not self.dead:
            self.dies_after -= 1
            if self.dies_after < 0:
                self.cluster.coordinator_died()
        return self.dead

    def _tell(self, event: Input) -> None:
        if self.ended is not None or self.dead:
            return
        if not self._started and not isinstance(event, StopRequested):
            if not isinstance(event, Tick):
                self._early.append(event)
            return
        before = self.membership.generation
        decisions = self.membership.handle(event, self.cluster.clock.now)
        if not decisions or not self._act():
            self._decided(event, decisions, before)

    def _decided(self, event: Input, decisions: list[Decision], before: int) -> None:
        if self.cluster.log is not None and (decisions or not isinstance(event, Tick | Progressed)):
            self.cluster.log(f"{self.cluster.clock.now:8.3f} {self.membership.phase:10} {event}")
            for decision in decisions:
                self.cluster.log(f"{'':22}-> {decision}")
        self.cluster.checks.told(event)
        if decisions:
            self._note()
            self.cluster.checks.decided(event, decisions, before)
        for decision in decisions:
            if isinstance(decision, End):
                self.cluster.checks.ended(decision)
        self._apply(decisions)

    def _note(self) -> None:
        self.cluster.ledger = Ledger.from_json(self.membership.ledger.to_json())

    def tell(self, event: Input) -> None:
        self._tell(event)

    def _apply(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if self.dead:
                return
            if isinstance(decision, End):
                self.ended = decision
            elif not isinstance(decision, Record):
                sent = self._sent
                super()._apply([decision])
                if isinstance(decision, Resume) and self._sent > sent:
                    if not self.cluster.checks.resumed_generation:
                        self.cluster.training_began()
                    self.cluster.checks.resumed(decision)

    def _to_node(self, node: str, message: dict[str, Any]) -> None:
        if not self._act():
            self._sent += 1
            self.cluster.nodes[node].down.send(self.cluster.nodes[node].command, message)


class Node:
    """One agent: starts and ends workers, sees them end or stop, and relays their words."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self._delays = [cluster.delay_s * cluster.rng.choice((1.0, 1.0, 1.0, 8.0)) for _ in range(2)]
        self.up, self.down = (Link(cluster.clock, cluster.rng, delay) for delay in self._delays)
        self.alive = self.connected = True
        self.witness = Witness()
        self._suspected: set[str] = set()
        self._gpu_reports: list[dict[str, Any]] = []

    def command(self, message: dict[str, Any]) -> None:
        if not self.alive:
            return
        workers = self.cluster.workers
        self.witness.ordered(message)
        match message["op"]:
            case "end":
                self.end()
            case "spawn":
                name = message["worker"]
                self.cluster.checks.no_worker_is_named_twice(name)
                workers[name] = Worker(self.cluster, name, self.name)
                workers[name].start()
            case "probe":
                unreached = [other for other in message["peers"] if not self.cluster.reach((self.name, other))]
                answer = {"op": "probed", "node": self.name, "number": message["number"], "unreached": unreached}
                at = PROBE_S if unreached else 0.001
                self.cluster.clock.after(at, self.up.send, self.cluster.at_coordinator, answer)
            case "kill":
                worker = workers.get(message["worker"])
                if worker is not None and worker.alive:
                    self.process_died(worker, -9)
            case _:
                for name in message["to"]:
                    worker = workers.get(name)
                    if worker is not None:
                        worker.run(worker.on_command, message)

    def process_died(self, worker: Worker, code: int) -> None:
        """A process ends: its tripwire may tell before its memory is gone and the agent can reap it."""
        worker.die()
        clock, rng = self.cluster.clock, self.cluster.rng
        if not worker.leaving and rng.random() < 0.8:
            clock.after(0.001 + rng.random() * 0.006, self.suspect, worker, "exit", "its process is ending")
        clock.after(0.01 + rng.random() * 0.14, self.send, {"op": "exited", "worker": worker.name, "code": code})

    def suspect(self, worker: Worker, cause: str, detail: str) -> None:
        if worker.name not in self._suspected:
            self._suspected.add(worker.name)
            self.send({"op": "suspected", "worker": worker.name, "cause": cause, "detail": detail})

    def saw_xid(self, worker: Worker, action: Action) -> None:
        """Of the GPU that the worker uses, or would use: its process goes on."""
        workers = [worker.name] if worker.name in self.witness.local_ranks() else []
        report = {"workers": workers, "error": "Xid", "xids": [79], "action": action.value}
        if self.alive and (workers or action is not Action.RESPAWN):
            self._gpu_reports.append({"op": "gpu_failed", "node": self.name, **report})
            self.up.send(self.cluster.at_coordinator, self._gpu_reports[-1])

    def send(self, message: dict[str, Any]) -> None:
        if self.alive:
            self.witness.said(message["worker"], message)
            self.up.send(self.cluster.at_coordinator, message)

    def coordinator_ended(self) -> None:
        """What was on its way to it is lost; of what it had sent, the first part still arrives."""
        self.up.cut()
        self.cluster.clock.after(self.cluster.rng.random() * 0.03, self.down.cut)

    def reconnect(self) -> None:
        """Another coordinator answers."""
        if self.alive and self.connected:
            clock, rng = self.cluster.clock, self.cluster.rng
            self.up, self.down = (Link(clock, rng, delay) for delay in self._delays)
            self.up.send(self.cluster.coordinator.hello, self.name, self.witness.accounts())
            for report in self._gpu_reports:
                self.up.send(self.cluster.at_coordinator, report)

    def cut_off(self, seen_after_s: float) -> None:
        """The connection is lost. The coordinator sees it at once or late; the agent after `seen_after_s`."""
        if not self.connected:
            return
        self.connected = False
        self.up.cut()
        self.down.cut()
        clock, rng = self.cluster.clock, self.cluster.rng
        lost = NodeLost(node=self.name, detail="the agent's connection closed")
        # Sooner than a hang would be suspected: nothing renews a lease of a node that vanishes without a word.
        clock.after(rng.random() * rng.choice((0.01, 0.5)), self.cluster.tell, lost)
        clock.after(seen_after_s, self.end)

    def end(self) -> None:
        """The agent's process ends, and its workers with it."""
        if self.alive:
            self.alive = False
            for worker in self.cluster.workers.values():
                if worker.node == self.name and worker.alive:
                    worker.die()


class Cluster:
    """One job under one plan of faults; `run` drives it to its end."""

    heartbeat_s = 0.1

    def __init__(self, plan: Plan, seed: int, log: Callable[[str], None] | None = None) -> None:
        """`log` is told the story of the job, as the coordinator sees it."""
        self.plan, self.log = plan, log
        self.rng = random.Random(seed ^ 0x5EED)
        self.clock = Clock()
        self.job = plan.job
        self.steps, self.buckets, self.delay_s = plan.steps, plan.buckets, plan.delay_s
        self.deaf_hangs = plan.deaf_hangs
        self.truth = undisturbed(len(self.job.rank_nodes), self.steps)
        self.workers: dict[str, Worker] = {}
        self.checks = Checks(self)
        self.ledger = Ledger()
        self.coordinator = SimulatedCoordinator(self, self.job)
        names = dict.fromkeys((*self.job.rank_nodes, *self.job.spare_nodes))
        self.nodes = {name: Node(self, name) for name in names}
        self.traps = [fault for fault in plan.faults if fault.point]
        self._groups: dict[int, Group] = {}
        self._raised = 0
        self._cut: set[str] = set()
        self._held: list[tuple[tuple[str, ...], Callable[..., None], tuple[Any, ...]]] = []
        self._next_crash: int | None = None

    # ---------------------------------------------------------------- running

    def run(self) -> End:
        """The end of the job. Raises Violation where an invariant does not hold."""
        self.coordinator.begin()
        self._arm(early=True)
        self.clock.after(TICK_S, self._tick)
        while self.coordinator.ended is None and not self.checks.nobody_can_tell:
            self.clock.step()
        if self.coordinator.ended is None:
            return End(outcome="hung", reason="every rank hangs in its script at once: no other one waits")
        return self.coordinator.ended

    def _arm(self, *, early: bool) -> None:
        for fault in self.plan.faults:
            if not fault.point and fault.early == early:
                self.clock.after(fault.at, self.strike, fault, None)

    def training_began(self) -> None:
        self._arm(early=False)

    def _tick(self) -> None:
        self.coordinator.tell(Tick())
        if self.coordinator.leads:
            self.checks.on_tick()
        idle = self.clock.next_at() - self.clock.now
        self.clock.after(min(max(TICK_S, idle), IDLE_TICK_S), self._tick)

    def at_coordinator(self, message: dict[str, Any]) -> None:
        told = input_of(message)
        if told is not None:
            if message["op"] == "quiesced":
                self.checks.heard(message["worker"], message["generation"], message["number"])
            self.coordinator.tell(told)

    def tell(self, event: Input) -> None:
        """For whom it is the coordinator of the moment that learns it; the launcher tells a later one to stop."""
        if self.coordinator.dead and isinstance(event, StopRequested):
            self.clock.after(0.1, self.tell, event)
        self.coordinator.tell(event)

    def coordinator_died(self) -> None:
        self.coordinator.dead = True
        if self.log is not None:
            self.log(f"{self.clock.now:8.3f} *** the coordinator is dead")
        for node in self.nodes.values():
            if node.alive and node.connected:
                node.coordinator_ended()
        self.clock.after(0.1 + self.rng.random() * self.rng.choice((0.1, 0.5, 2.0)), self._start_coordinator)

    def _start_coordinator(self) -> None:
        self.coordinator = SimulatedCoordinator(self, self.job)
        if self._next_crash is not None:
            self.coordinator.dies_after, self._next_crash = self._next_crash, None
        if self.ledger.ended is not None:
            outcome, reason = self.ledger.ended
            self.coordinator.ended = End(outcome=outcome, reason=reason)
            return
        for node in self.nodes.values():
            self.clock.after(self.rng.random() * self.rng.choice((0.01, 0.3)), node.reconnect)
        self.clock.after(self.job.detection.lease_s, self.coordinator.take_over)

    # ---------------------------------------------------------------- what workers need

    def group(self, generation: int, world: World) -> Group:
        if generation not in self._groups:
            self._groups[generation] = Group(self, generation, world.size)
        return self._groups[generation]

    def work_s(self, kind: str) -> float:
        least, most = WORK_S[kind]
        return least + (most - least) * self.rng.random()

    def from_worker(self, worker: Process, message: dict[str, Any]) -> None:
        self.nodes[worker.node].send({**message, "worker": worker.name})

    def process_ended(self, worker: Worker, code: int) -> None:
        """It ended by itself: `leaving` has been said, so its tripwire is no alarm."""
        self.checks.the_healthy_never_fail(worker, code)
        self.nodes[worker.node].process_died(worker, code)

    def reach(self, nodes: Collection[str]) -> bool:
        """Whether these nodes reach each other on the data network."""
        return len(set(nodes)) == 1 or self._cut.isdisjoint(nodes)

    def once_reached(self, nodes: Collection[str], action: Callable[..., None], *args: Any) -> None:
        """At once, or when the network between these nodes is whole again: dropped packets are sent again."""
        if self.reach(nodes):
            action(*args)
        else:
            self._held.append((tuple(nodes), action, args))

    def _heal(self, node: str) -> None:
        self._cut.discard(node)
        self.checks.last_fault = self.clock.now
        held, self._held = self._held, []
        for nodes, action, args in held:
            self.once_reached(nodes, action, *args)

    def script_raises(self, where: str, worker: Worker) -> bool:
        rank, boundary = worker.rank, worker.boundary
        for mistake in self.plan.mistakes:
            if mistake.rank == rank and mistake.where == where and mistake.boundary in (boundary, -1):
                if mistake.times <= self._raised:
                    return False
                self._raised += 1
                self.struck("script", where, [worker.name])
                return True
        return False

    # ---------------------------------------------------------------- faults

    def reached(self, point: str, name: str) -> None:
        for fault in self.traps:
            if fault.point == point and (fault.early or self.checks.resumed_generation):
                fault.seen += 1
                if fault.seen == fault.nth:
                    self.traps = [other for other in self.traps if other is not fault]
                    self.strike(fault, self.workers[name])
                    return

    def strike(self, fault: Fault, at: Worker | None) -> None:
        """Apply a fault to its victim, if there is such a one now."""
        if fault.kind == "coordinator":
            self._kill_coordinator(fault)
            return
        victim = self._victim(fault, at)
        if victim is None and fault.kind != "stop_job":
            return
        hit = [w.name for w in self.workers.values() if victim is not None and w.node == victim.node]
        if fault.kind == "reset":
            hit = []  # nobody has failed
        of_node = fault.kind in ("agent", "partition", "cut", "reset")
        unnoticed = fault.kind in ("hang", "cut") or (
            fault.kind == "silent" and victim is not None and not victim.parked
        )
        self.checks.hangs += unnoticed
        self.struck(fault.kind, fault.point, hit if of_node or victim is None else [victim.name])
        if fault.kind == "stop_job":
            self.tell(StopRequested(reason="SIGTERM received"))
            return
        assert victim is not None
        node = self.nodes[victim.node]
        match fault.kind:
            case "kill":
                node.process_died(victim, -9)
            case "hang":
                victim.hang_next = True
            case "stop" | "silent":
                victim.frozen = True
                detection = self.job.detection
                limit = detection.stopped_s if fault.kind == "stop" else detection.silent_s
                # A worker that has not parked may be importing: its silence means nothing to its agent.
                if fault.kind == "silent" and not victim.parked:
                    return
                self.clock.after(limit + self.rng.random() * 0.05, node.suspect, victim, fault.kind, "does not run")
            case "pause":
                victim.frozen = True
                self.clock.after(self.rng.random() * 0.15, self._thaw, victim)
            case "reset":
                victim.connections_reset()
            case "device":
                action = self.rng.choice((Action.RESPAWN, Action.QUARANTINE_GPU, Action.QUARANTINE_NODE))
                error = {"error": "CUDA error", "code": 700, "xids": [31], "action": action.value}
                victim.send("device_failed", **error)
                node.process_died(victim, 70)
            case "gpu":
                node.saw_xid(victim, self.rng.choice((Action.RESPAWN, Action.QUARANTINE_GPU, Action.QUARANTINE_NODE)))
            case "agent":
                node.cut_off(0.0)
                node.end()
            case "partition":
                node.cut_off(self.rng.random() * self.rng.choice((0.01, 3.0)))
            case "cut":
                self._cut.add(victim.node)
                self.checks.data_network_cut(victim.node)
                any_time = self.rng.choice((0.5, 5.0, 20.0)) * self.rng.random()
                self.clock.after(any_time if fault.lasts is None else fault.lasts, self._heal, victim.node)
            case "peer_link" | "cut_then_kill":
                if victim.gate.replicator is not None:
                    victim.gate.replicator.break_connection()
                if fault.kind == "cut_then_kill":
                    self.clock.after(0.01 + self.rng.random() * 0.05, self._kill, victim)

    def struck(self, kind: str, point: str, workers: Sequence[str]) -> None:
        self.checks.fault_struck(kind, point, workers)
        if self.log is not None:
            self.log(f"{self.clock.now:8.3f} *** {kind} {point} {' '.join(workers)}")

    def _kill_coordinator(self, fault: Fault) -> None:
        """At once, or after a few more of its acts; where there is none just now, the next one soon after its start."""
        acts = (
            self.rng.choice((0, self.rng.randint(0, 3), self.rng.randint(0, 12))) if fault.acts is None else fault.acts
        )
        self.struck(fault.kind, fault.point, [])
        if self.coordinator.dead:
            self._next_crash = acts
        elif acts and self.coordinator.dies_after is None:
            self.coordinator.dies_after = acts
        else:
            self.coordinator_died()

    def _kill(self, worker: Worker) -> None:
        if worker.alive:
            self.nodes[worker.node].process_died(worker, -9)

    @staticmethod
    def _thaw(worker: Worker) -> None:
        if worker.alive:
            worker.thaw()

    def _victim(self, fault: Fault, at: Worker | None) -> Worker | None:
        if fault.victim == "self" and at is not None:
            return at if at.alive and not at.frozen else None
        if fault.victim == "dead":
            there = [w for w in self.workers.values() if not w.alive and self.nodes[w.node].connected]
            return self.rng.choice(there) if there else None
        ranks = self.coordinator.membership.ranks
        alive = [w for w in self.workers.values() if w.alive and not w.frozen]
        if fault.victim == "spare":
            alive = [w for w in alive if w.name not in ranks]
        elif fault.victim == "rank":
            alive = [w for w in alive if w.name in ranks]
        return self.rng.choice(alive) if alive else None

    # ---------------------------------------------------------------- views for the invariants

    def world_workers(self) -> Sequence[Worker | None]:
        return [self.workers.get(name) for name in self.coordinator.membership.ranks]
