"""A runtime without torch that emits the same events as the real one, for tests of everything above it.

It heals for real: workers are processes, a killed or frozen one is noticed, a parked spare takes its rank, and the work
goes on from the greatest boundary. Only the training is pretended: the state is a chain of hashes.

    python fake_runtime.py '{"steps": 30, ...}'     the launcher (coordinator and agent in one process)
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.procfs import process_stat
from chaos.runtimes import Command, Job
from phoenix_core.events import EventWriter

_PR_SET_PDEATHSIG: Final = 1


STARVED: Final = 25
"""So much longer is waited for a rank that would run and gets no processor: a busy machine is no hang."""


@dataclass(frozen=True, kw_only=True)
class FakeRuntime:
    """The adapter. `flaw` plants a violation: crash | leak | deaf | wrong | silent | amnesia | again.

    `replaces_spares`: a lost spare is replaced, and the job does not end before the new one is parked.
    """

    name: str = "fake"
    step_s: float = 0.004
    hang_s: float = 0.4
    flaw: str = ""
    replaces_spares: bool = False

    def command(self, job: Job) -> Command:
        settings = {
            "run_dir": str(job.directory.path),
            "world_size": job.cluster.world_size,
            "spares": job.cluster.spares,
            "steps": job.steps,
            "seed": job.seed,
            # An adapter named in PHOENIX_RUNTIMES is made without arguments; its pace comes from the environment.
            "step_s": float(os.environ.get("FAKE_STEP_S", self.step_s)),
            "hang_s": self.hang_s,
            "flaw": self.flaw,
            "replaces_spares": self.replaces_spares,
            "hold": os.environ.get("FAKE_HOLD", ""),
        }
        return Command(argv=(sys.executable, __file__, json.dumps(settings)))


FAKE: Final = FakeRuntime()


@dataclass(frozen=True, kw_only=True)
class Settings:
    run_dir: str
    world_size: int
    spares: int
    steps: int
    seed: int
    step_s: float
    hang_s: float
    flaw: str
    replaces_spares: bool
    hold: str = ""
    """STEP:FILE: no rank begins this step before there is this file, so that what a test does meanwhile is in time."""


def state_at(seed: int, step: int) -> bytes:
    state = hashlib.sha256(f"seed {seed}".encode()).digest()
    for index in range(step):
        state = next_state(state, index)
    return state


def next_state(state: bytes, step: int) -> bytes:
    return hashlib.sha256(state + step.to_bytes(8, "big")).digest()


def loss_of(state: bytes, rank: int) -> float:
    return int.from_bytes(hashlib.sha256(state + bytes([rank])).digest()[:7], "big") / 2**53


# --- worker ----------------------------------------------------------------------------------------------------------


class Superseded(Exception):
    """A new generation was announced."""


class Worker:
    def __init__(self, settings: Settings, name: str, node: str, peer: socket.socket, *, spare: bool) -> None:
        self.settings, self.peer = settings, peer
        self.events = EventWriter(Path(settings.run_dir) / "events" / f"{name}.jsonl", worker=name, node=node)
        self.rank, self.generation, self.step = -1, 0, 0
        self.state = b""
        self.late = False
        if spare:
            self.events.emit("spare_parked")
            self.send(parked=True)

    def send(self, **message: object) -> None:
        self.peer.send(json.dumps(message).encode())

    def emit(self, kind: str, **fields: Any) -> None:
        self.events.emit(kind, rank=self.rank, generation=self.generation, **fields)

    def serve(self) -> None:
        training = False
        while True:
            if not training:
                training = self.obey(self.receive())
                continue
            try:
                self.execute() if self.step < self.settings.steps else self.finish()
                training = self.step <= self.settings.steps
            except Superseded:
                training = False

    def receive(self) -> dict[str, Any]:
        block = self.peer.recv(65536)
        if not block:
            os._exit(0)
        message: dict[str, Any] = json.loads(block)
        return message

    def obey(self, message: dict[str, Any]) -> bool:
        """Do what the coordinator says; True if training goes on."""
        self.generation = message["generation"]
        if message["do"] == "join":
            self.rank, self.late = message["rank"], message["late"]
            if self.late:
                self.emit("model_built")
            self.emit("communicator_ready", groups=1, seconds=0.0)
            self.send(ready=self.generation, boundary=None)
        elif message["do"] == "quiesce":
            self.emit("worker_quiesced", boundary=self.step)
            self.emit("communicator_ready", groups=1, seconds=0.0)
            self.send(ready=self.generation, boundary=self.step)
        elif message["do"] == "resume":
            self.step = message["step"]
            self.state = state_at(self.settings.seed, self.step)
            if self.settings.flaw == "wrong" and self.late:
                self.state = bytes(32)
            self.emit("state_restored", boundary=self.step, source="twin", bytes=32, seconds=0.0)
            return True
        return False

    def execute(self) -> None:
        at, _, file = self.settings.hold.partition(":")
        while file and self.step == int(at) and not Path(file).exists():
            time.sleep(0.002)
        step, started = self.step, time.monotonic_ns()
        for phase in ("forward", "backward", "gradient_sync"):
            if self.settings.flaw != "silent":
                self.emit("phase_entered", step=step, phase=phase)
            time.sleep(self.settings.step_s / 4)
        self.send(sync=step, generation=self.generation)
        message = self.receive()
        if message["do"] != "go":
            self.obey(message)
            raise Superseded
        self.emit("phase_entered", step=step, phase="optimizer")
        time.sleep(self.settings.step_s / 4)
        loss = loss_of(self.state, self.rank)
        self.state = next_state(self.state, step)
        self.step = step + 1
        used = step - 1 if self.settings.flaw == "again" and self.late else step
        values = {} if self.settings.flaw == "amnesia" else {"loss": loss, "data": used}
        self.emit("step_committed", step=step, duration_ns=time.monotonic_ns() - started, **values)

    def finish(self) -> None:
        self.emit("state_digest", step=self.step, digest=self.state.hex())
        self.send(done=True)
        self.obey(self.receive())
        raise Superseded


# --- launcher --------------------------------------------------------------------------------------------------------


@dataclass
class Member:
    name: str
    node: str
    pid: int
    peer: socket.socket
    rank: int | None = None
    parked: bool = False
    ready: int = -1
    boundary: int | None = None
    synced: int = -1
    done: bool = False
    alive: bool = True


def wants_to_run(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and stat.state == "R"


@dataclass
class Launcher:
    settings: Settings
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0
    resumed: bool = False
    synced_at: float | None = None
    failure: str = ""

    def __post_init__(self) -> None:
        self.directory = Path(self.settings.run_dir)
        self.events = EventWriter(self.directory / "events" / "launcher.jsonl")

    def run(self) -> int:
        size = self.settings.world_size
        self.events.emit("job_started", world_size=size, spares=self.settings.spares)
        for index in range(size + self.settings.spares):
            self.spawn(spare=index >= size)
        for rank, member in enumerate(list(self.members.values())[:size]):
            member.rank = rank
        # Every spare is ready before the first step, so that a test's outcome does not depend on the machine's load.
        while not self.failure and not all(m.parked for m in self.members.values() if m.rank is None):
            self.pump()
        self.form(joining=list(range(size)), late=False)
        while not self.failure and not self.finished:
            self.pump()
        outcome = "failed" if self.failure else "completed"
        self.events.emit("job_finished", outcome=outcome, reason=self.failure)
        self.stop_all()
        if self.failure:
            print(f"phoenix: {self.failure}", file=sys.stderr)
        return 1 if self.failure else 0

    @property
    def finished(self) -> bool:
        active = [member for member in self.members.values() if member.rank is not None]
        waiting = [member for member in self.members.values() if member.alive and member.rank is None]
        settled = not self.settings.replaces_spares or all(member.parked for member in waiting)
        return settled and all(member.done for member in active)

    def spawn(self, *, spare: bool) -> None:
        name = f"w{len(self.members)}"
        node = f"n{len(self.members)}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self.become_worker(name, node, theirs, spare=spare)
        theirs.close()
        self.members[name] = Member(name=name, node=node, pid=pid, peer=ours)
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        self.events.emit("worker_spawned", worker=name, node=node, pid=pid, start_ticks=ticks)

    def become_worker(self, name: str, node: str, peer: socket.socket, *, spare: bool) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(self.directory / "logs" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for member in self.members.values():
            member.peer.close()
        if self.settings.flaw == "crash":
            os.write(2, b"Traceback (most recent call last):\nFileNotFoundError: no such text: /missing.txt\n")
            os._exit(2)
        try:
            Worker(self.settings, name, node, peer, spare=spare).serve()
        finally:
            os._exit(1)

    def form(self, *, joining: list[int], late: bool) -> None:
        """A new generation: survivors quiesce, the others join."""
        ranked = {member.rank: member for member in self.members.values() if member.rank is not None}
        ranks = [ranked[rank].name for rank in range(self.settings.world_size)]
        spares = [member.name for member in self.members.values() if member.parked and member.rank is None]
        self.resumed, self.synced_at = False, None
        self.events.emit("world_formed", generation=self.generation, ranks=ranks, spares=spares, joining=joining)
        for rank, member in ranked.items():
            member.synced, member.done = -1, False
            if rank in joining:
                self.send(member, do="join", rank=rank, late=late)
            else:
                self.send(member, do="quiesce")

    def send(self, member: Member, **message: object) -> None:
        with contextlib.suppress(OSError):  # it may have just died; the end of its socket tells the loop
            member.peer.send(json.dumps({**message, "generation": self.generation}).encode())

    def pump(self) -> None:
        peers = {member.peer: member for member in self.members.values() if member.alive}
        ready, _, _ = select.select(list(peers), [], [], 0.02)
        for peer in ready:
            try:
                block = peer.recv(65536)
            except OSError:
                block = b""
            if block:
                self.hear(peers[peer], json.loads(block))
            else:
                self.lost(peers[peer], "exit")
        self.advance()

    def hear(self, member: Member, message: dict[str, Any]) -> None:
        if "parked" in message:
            member.parked = True
        elif "ready" in message:
            member.ready, member.boundary = message["ready"], message["boundary"]
        elif "sync" in message and message["generation"] == self.generation:
            member.synced = message["sync"]
            self.synced_at = self.synced_at or time.monotonic()
        elif "done" in message:
            member.done = True

    def advance(self) -> None:
        active = [member for member in self.members.values() if member.rank is not None]
        if self.failure or len(active) < self.settings.world_size:
            return
        if not self.resumed:
            if all(member.ready == self.generation for member in active):
                self.resume(active)
            return
        step = max(member.synced for member in active)
        if step >= 0 and all(member.synced == step for member in active):
            self.synced_at = None
            for member in active:
                member.synced = -1
                self.send(member, do="go")
        elif self.synced_at is not None:
            culprit = min(active, key=lambda member: member.synced)
            limit_s = self.settings.hang_s * (STARVED if wants_to_run(culprit.pid) else 1)
            if time.monotonic() - self.synced_at > limit_s:
                self.lost(culprit, "hang")

    def resume(self, active: list[Member]) -> None:
        step = max((member.boundary for member in active if member.boundary is not None), default=0)
        self.resumed = True
        self.events.emit("generation_resumed", generation=self.generation, step=step, steps=self.settings.steps)
        for member in active:
            self.send(member, do="resume", step=step)
        if len([m for m in self.members.values() if m.alive and m.rank is None]) < self.settings.spares:
            self.spawn(spare=True)

    def lost(self, member: Member, cause: str) -> None:
        member.alive = False
        os.kill(member.pid, signal.SIGKILL)
        _, status = os.waitpid(member.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self.events.emit("worker_exited", worker=member.name, node=member.node, pid=member.pid, code=code)
        member.peer.close()
        rank, member.rank = member.rank, None
        parked, member.parked = member.parked, False
        self.generation += rank is not None
        self.events.emit(
            "failure_detected", worker=member.name, rank=rank, generation=self.generation, cause=cause, detail=""
        )
        if rank is None:
            if not parked:
                self.failure = f"{member.name} ended before it was ready"
            elif self.settings.replaces_spares:
                self.spawn(spare=True)
            return
        spare = next((m for m in self.members.values() if m.parked and m.alive and m.rank is None), None)
        if spare is None:
            self.failure = f"rank {rank} has no worker and no spare can come"
            return
        spare.rank, spare.parked = rank, False
        self.events.emit("spare_assigned", worker=spare.name, rank=rank, generation=self.generation)
        joining = [m.rank for m in self.members.values() if m.rank is not None and m.ready < 0]
        self.form(joining=joining, late=True)

    def stop_all(self) -> None:
        for member in self.members.values():
            if member.alive:
                os.kill(member.pid, signal.SIGKILL)
                os.waitpid(member.pid, 0)
                self.events.emit("worker_exited", worker=member.name, node=member.node, pid=member.pid, code=-9)
            member.peer.close()


def leave_a_process_behind() -> None:
    """The planted leak: a daemon in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(120)
        os._exit(0)
    os.wait()


def main() -> int:
    settings = Settings(**json.loads(sys.argv[1]))
    for name in ("events", "logs"):
        (Path(settings.run_dir) / name).mkdir(parents=True, exist_ok=True)
    if settings.flaw == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    launcher = Launcher(settings)

    def terminate(*_: object) -> None:
        launcher.failure = "stopped by SIGTERM"

    if settings.flaw != "deaf":
        signal.signal(signal.SIGTERM, terminate)
    if settings.flaw == "leak":
        leave_a_process_behind()
    return launcher.run()


if __name__ == "__main__":
    sys.exit(main())
