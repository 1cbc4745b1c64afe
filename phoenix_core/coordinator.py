"""The coordinator: carries what agents report to the membership, and its decisions back.

It holds no training state and imports no torch. While nothing fails nobody needs it: where its process dies the
launcher starts another one, which finds in the ledger what was decided, and is told by the agents what has come of it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from phoenix_core.advice import tell
from phoenix_core.agent import start_ticks
from phoenix_core.events import EventWriter
from phoenix_core.ledger import Book, Ledger
from phoenix_core.narrator import Narrator
from phoenix_core.placement import Offer
from phoenix_core.protocol import (
    Alert,
    Announce,
    CheckpointWritten,
    CollectiveBroken,
    Decision,
    DeviceFailed,
    End,
    GpuFailed,
    Input,
    Kill,
    LoopFinished,
    NodeLost,
    Probe,
    Probed,
    Progress,
    Progressed,
    Quiesced,
    Record,
    Release,
    Restored,
    RestoreFailed,
    Resume,
    ScriptFailed,
    SendPlan,
    Spawn,
    StopRequested,
    Tick,
    WorkerExited,
    WorkerParked,
    WorkerSuspected,
)
from phoenix_core.roster import Job
from phoenix_core.settings import Detection
from phoenix_core.succession import Succession
from phoenix_core.wire import COORDINATOR_EVENTS, LINE_LIMIT, encode, messages
from phoenix_core.witness import Account
from phoenix_core.world import World

EXIT_CODES = {"completed": 0, "failed": 1, "stopped": 130}
TICK_S = 0.05
JOIN_LIMIT_S = 60.0
PINGS_A_LEASE = 5
FAREWELL_S = 5.0
"""How long the agents have to end their workers before the coordinator leaves without them."""


def input_of(message: dict[str, Any]) -> Input | None:
    """What a message of an agent or worker tells the membership; None for one it does not know."""
    worker = str(message.get("worker", ""))
    match message["op"]:
        case "parked":
            host, port = message["address"]
            return WorkerParked(worker=worker, address=(host, port))
        case "exited":
            return WorkerExited(worker=worker, code=message["code"])
        case "suspected":
            return WorkerSuspected(worker=worker, cause=message["cause"], detail=message["detail"])
        case "progress":
            return Progressed(worker=worker, progress=Progress.from_json(message))
        case "quiesced":
            return Quiesced(worker=worker, generation=message["generation"], offer=Offer.from_json(message["offer"]))
        case "restored":
            return Restored(worker=worker, generation=message["generation"])
        case "restore_failed":
            return RestoreFailed(worker=worker, generation=message["generation"], reason=message["reason"])
        case "collective_broken":
            return CollectiveBroken(worker=worker, generation=message["generation"], reason=message["reason"])
        case "checkpointed":
            return CheckpointWritten(worker=worker, boundary=message["boundary"])
        case "finished":
            return LoopFinished(worker=worker, generation=message["generation"])
        case "script_failed":
            return ScriptFailed(worker=worker, error=message["error"])
        case "device_failed":
            return DeviceFailed.from_json(worker, message)
        case "probed":
            return Probed(node=message["node"], number=message["number"], unreached=tuple(message["unreached"]))
        case "gpu_failed":
            return GpuFailed.from_json(message)
    return None


class Coordinator:
    def __init__(
        self, job: Job, *, token: str, events: EventWriter, book: Book | None = None, logs_apart: bool = False
    ) -> None:
        """`book` holds the ledger of the coordinator before, if there was one, and is given this one's.
        `logs_apart`: what workers print goes to files."""
        self._book = book
        self._found = book.read() if book is not None else Ledger()
        self.membership = Succession(job, self._found)
        self.token = token
        self.events = events
        every = dict.fromkeys((*job.rank_nodes, *job.spare_nodes))
        self.nodes = [node for node in every if node not in self._found.lost_nodes]
        self._told: dict[str, list[Account]] = {}
        self._early: list[Input] = []
        self._agents: dict[str, asyncio.StreamWriter] = {}
        self._heard_at: dict[str, float] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._started = False
        self._announced: World | None = None
        self._narrator = Narrator()
        self._logs_apart, self._passed_on = logs_apart, set[str]()
        self._outcome: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    async def run(self, control: socket.socket) -> End:
        """Serve until the job has ended; then every agent has been told to end its workers."""
        loop = asyncio.get_running_loop()
        for sig, reason in ((signal.SIGTERM, "SIGTERM received"), (signal.SIGINT, "interrupted (Ctrl-C)")):
            loop.add_signal_handler(sig, self._tell, StopRequested(reason=reason))
        if self._found.ended is not None:
            outcome, reason = self._found.ended
            return End(outcome=outcome, reason=reason)  # the one before had only to say so
        server = await asyncio.start_server(self._serve_agent, sock=control, limit=LINE_LIMIT)
        ticks = asyncio.create_task(self._tick())
        end = await self._outcome
        ticks.cancel()
        for writer in self._agents.values():
            writer.write(encode({"op": "end"}))
        if self._connections:
            await asyncio.wait(self._connections, timeout=FAREWELL_S)
        server.close()
        return end

    async def _tick(self) -> None:
        lease_s = self.membership.job.detection.lease_s
        previous = pinged = time.monotonic()
        deadline = previous + (lease_s if self._found.seats else JOIN_LIMIT_S)
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if now - previous > 10 * TICK_S:
                # This process itself was not scheduled: what it did not hear meanwhile proves nothing.
                self._heard_at = dict.fromkeys(self._heard_at, now)
            previous = now
            if now - pinged > lease_s / PINGS_A_LEASE:
                pinged = now
                for node in self._agents:
                    self._to_node(node, {"op": "ping"})
            for node in [node for node, heard_at in self._heard_at.items() if now - heard_at > lease_s]:
                self._lose(node, f"nothing was heard of its agent for {lease_s:.0f} s")
            if self._started:
                self._tell(Tick())
            elif now > deadline and self._found.seats:
                self._start()  # who has not come back by now has ended its workers
            elif now > deadline:
                missing = ", ".join(node for node in self.nodes if node not in self._agents)
                self._tell(StopRequested(reason=f"no agent joined from {missing} within {JOIN_LIMIT_S:.0f} s"))

    async def _serve_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        node = ""
        async for message in messages(reader):
            if node in self._heard_at:
                self._heard_at[node] = time.monotonic()
            if message["op"] == "hello" and hmac.compare_digest(str(message["token"]), self.token):
                if message["node"] in self.membership.lost_nodes:
                    writer.write(encode({"op": "end"}))  # others have its ranks
                    break
                node = str(message["node"])
                self._agents[node] = writer
                self._heard_at[node] = time.monotonic()
                self._told[node] = [Account.from_json(account) for account in message.get("workers", ())]
                if self._found.seats:
                    writer.write(encode({"op": "ping"}))  # it has heard nothing since the one before ended
                if not self._started and set(self._agents) >= set(self.nodes):
                    self._start()
            elif not node:
                break  # a stranger: everything before a valid hello is refused
            elif message["op"] == "beats":
                for worker, progress in message["beats"].items():
                    self._tell(Progressed(worker=worker, progress=Progress.from_json(progress)))
            elif message["op"] == "advised":
                self._pass_on(message)
            elif (told := input_of(message)) is not None:
                self._tell(told)
        writer.close()
        if node:
            self._lose(node, "the agent's connection closed")

    def _pass_on(self, message: dict[str, Any]) -> None:
        """What a rank said in its log, and others `about` the same; without logs it came to this terminal already."""
        if self._logs_apart and message["about"] not in self._passed_on:
            self._passed_on.add(message["about"])
            tell(f"phoenix: {message['worker']}: {message['text']}")

    def _lose(self, node: str, detail: str) -> None:
        """The node is no longer spoken to: should its agent still live, it ends its workers when it sees that."""
        if self._heard_at.pop(node, None) is not None:
            self._agents[node].close()
            self._tell(NodeLost(node=node, detail=detail))

    def _start(self) -> None:
        self._started = True
        if self._found.seats:
            told = {node: accounts for node, accounts in self._told.items() if node in self._heard_at}
            self._decide("its start", lambda: self.membership.take_over(told, time.monotonic()))
        else:
            job = self.membership.job
            ranks, spares = len(job.rank_nodes), len(job.spare_nodes)
            self.events.emit("job_started", world_size=ranks, spares=spares, nodes=self.nodes)
            self._decide("its start", self.membership.start)
        self._told.clear()
        early, self._early = self._early, []
        for event in early:
            self._tell(event)

    def _tell(self, event: Input) -> None:
        if not self._started and not isinstance(event, StopRequested):
            self._early.append(event)  # it means something once all have said what they know
            return
        self._decide(event, lambda: self.membership.handle(event, time.monotonic()))

    def _decide(self, about: object, membership: Callable[[], list[Decision]]) -> None:
        try:
            decisions = membership()
            if decisions and self._book is not None:
                self._book.write(self.membership.ledger)  # before anybody can act on them
            self._apply(decisions)
        except Exception as error:  # a defect here must end the job with a word, not leave it hanging
            if not self._outcome.done():
                reason = f"the coordinator failed at {about}: {type(error).__name__}: {error}"
                self._outcome.set_result(End(outcome="failed", reason=reason))
            raise

    def _apply(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Record():
                    self.events.emit(decision.kind, at=None, **decision.fields)
                    if said := self._narrator.line(decision, time.monotonic()):
                        tell(f"phoenix: {said}")
                case Spawn():
                    self._to_node(decision.node, {"op": "spawn", "worker": decision.worker})
                case Kill():
                    self._to_worker_agent(decision.worker, {"op": "kill", "worker": decision.worker})
                case Alert():
                    self._to_ranks({"op": "alert", "generation": decision.generation})
                case Announce():
                    self._announce(decision)
                case SendPlan():
                    self._send_plan(decision)
                case Resume():
                    resume = {"op": "resume", "generation": decision.generation, "boundary": decision.boundary}
                    self._to_ranks(resume)
                case Release():
                    everyone = [m.worker for m in self.membership.members.values() if m.address is not None]
                    self._to_workers(everyone, {"op": "release"})
                case Probe():
                    for node in decision.addresses:
                        self._to_node(node, {"op": "probe", "number": decision.number, "peers": decision.addresses})
                case End():
                    if not self._outcome.done():
                        self._outcome.set_result(decision)

    def _announce(self, decision: Announce) -> None:
        """The whole world to whom it is new; to those who were told of the one before, what has changed since."""
        members, world = self.membership.members, decision.world
        message = {"op": "world", "joining": list(decision.joining), "fresh": decision.fresh}
        message["boundary"] = decision.boundary
        whole = {
            "world": world.to_json(),
            "peers": [members[worker].address for worker in world.ranks],
            "nodes": [members[worker].node for worker in world.ranks],
        }
        before, self._announced = self._announced, world
        known = set(before.ranks) if before is not None else set()
        if before is not None:
            new = [rank for rank, worker in enumerate(world.ranks) if worker != before.ranks[rank]]
            placed = [(r, world.ranks[r], members[world.ranks[r]].address, members[world.ranks[r]].node) for r in new]
            changes = {"generation": world.generation, "spares": list(world.spares), "placed": placed}
            self._to_workers([w for w in world.ranks if w in known], {**message, "changes": changes})
        self._to_workers([worker for worker in world.ranks if worker not in known], {**message, **whole})

    def _send_plan(self, decision: SendPlan) -> None:
        plan = decision.plan
        message = {"op": "plan", "generation": decision.generation, "boundary": plan.boundary, "disk": plan.disk}
        there = [worker for rank, worker in enumerate(self.membership.ranks) if rank not in plan.sources]
        self._to_workers(there, message)
        for rank, source in plan.sources.items():
            given = {"tensors": source.tensors, "small": source.small}
            self._to_workers([self.membership.ranks[rank]], {**message, **given})

    def _to_ranks(self, message: dict[str, Any]) -> None:
        self._to_workers(self.membership.ranks, message)

    def _to_workers(self, workers: Iterable[str], message: dict[str, Any]) -> None:
        """One line for all workers of a node; their agent hands it to each."""
        by_node: dict[str, list[str]] = {}
        for worker in workers:
            by_node.setdefault(self.membership.members[worker].node, []).append(worker)
        for node, there in by_node.items():
            self._to_node(node, {**message, "to": there})

    def _to_worker_agent(self, worker: str, message: dict[str, Any]) -> None:
        self._to_node(self.membership.members[worker].node, message)

    def _to_node(self, node: str, message: dict[str, Any]) -> None:
        writer = self._agents.get(node)
        if writer is not None and not writer.is_closing():
            writer.write(encode(message))


async def serve(config: dict[str, Any]) -> int:
    job = Job(
        rank_nodes=tuple(config["rank_nodes"]),
        spare_nodes=tuple(config["spare_nodes"]),
        max_restarts=config["max_restarts"],
        begins_at=config["begins_at"],
        detection=Detection(**config["detection"]),
    )
    run_dir = config["run_dir"]
    events = EventWriter(Path(run_dir) / COORDINATOR_EVENTS if run_dir else None, forgiving=True)
    events.emit("coordinator_started", pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
    book = Book(config["ledger_fds"])
    coordinator = Coordinator(job, token=config["token"], events=events, book=book, logs_apart=bool(run_dir))
    end = await coordinator.run(socket.socket(fileno=config["control_fd"]))
    # The keeper repeats an interruption until this process has ended; it must end as it says, and say it once.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    if end.outcome != "completed":
        tell(f"phoenix run: the job {end.outcome}: {end.reason}")
    return EXIT_CODES[end.outcome]


if __name__ == "__main__":
    given = sys.stdin.read()
    if not given:
        sys.exit(1)  # the launcher has died before it could say what job this is
    sys.exit(asyncio.run(serve(json.loads(given))))
