"""The agent of one node: starts its workers, sees them end or stop, and relays their words.

It imports no torch and decides nothing. Its workers die with it, and it ends them when it has heard nothing of a
coordinator for a lease: a node that nobody leads must not go on. A connection that breaks is another thing: the
coordinator's process has ended, training needs none meanwhile, and the next one is told what this agent has witnessed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from phoenix_core.advice import tell
from phoenix_core.events import EventWriter
from phoenix_core.health import Health, HealthSettings
from phoenix_core.reachability import PROBE_S
from phoenix_core.settings import Detection
from phoenix_core.starting import CannotStart, start_worker
from phoenix_core.tripwire import Tripwire
from phoenix_core.wire import LINE_LIMIT, encode, messages
from phoenix_core.witness import Witness

CHECK_S = 0.05
RECONNECT_S = 0.02
STARVED_SHARE = 0.3
"""A process that gets no processor wants one at nearly every look; one whose threads only wait for the GIL, seldom."""
LAST_READS = 5
"""Rounds of the event loop in which an ending worker's socket is read before its end is reported."""
CANNOT_START = 127
"""As a shell says it of a command."""
LAST_WORDS_S = 0.05
"""How long an ended worker's socket is read on; a forked child of it may hold it open for ever."""


@dataclass
class Process:
    worker: str
    popen: subprocess.Popen[bytes]
    pidfd: int
    writer: asyncio.StreamWriter
    heard_at: float | None = None
    stopped_since: float | None = None
    looks: list[bool] = field(default_factory=list)
    suspected: bool = False
    leaving: bool = False
    wire: Tripwire | None = None
    relay: asyncio.Task[None] | None = None


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    node: str
    coordinator: tuple[str, int]
    store: tuple[str, int]
    token: str
    command: tuple[str, ...]
    environment: dict[str, str]
    run_dir: str | None
    address: str
    world_size: int
    local_world_size: int
    detection: Detection

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> AgentConfig:
        converted: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        converted["detection"] = Detection(**data["detection"])
        return AgentConfig(**converted)


def process_state(pid: int) -> str:
    """The kernel's one-letter state (R, S, D, T, ...); empty where the process is gone."""
    return "".join(_stat(pid)[:1])


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot: with the pid it names a process for good."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def wants_to_run(pid: int) -> bool:
    """Whether any thread of the process runs or waits for a processor."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_stat_of(f"/proc/{pid}/task/{thread}/stat")[:1] == ["R"] for thread in threads)


def _stat(pid: int) -> list[str]:
    return _stat_of(f"/proc/{pid}/stat")


def _stat_of(path: str) -> list[str]:
    try:
        # The command's name, in parentheses, may hold anything: the fields begin after the last one.
        return Path(path).read_text().rpartition(")")[2].split()
    except OSError:
        return []


class Agent:
    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        run_dir = Path(config.run_dir) if config.run_dir else None
        path = run_dir / "events" / f"agent-{config.node}.jsonl" if run_dir else None
        self.events = EventWriter(path, forgiving=True, node=config.node)
        self.logs = run_dir / "logs" if run_dir else None
        self._processes: dict[str, Process] = {}
        self._witness = Witness()
        self._upward: asyncio.StreamWriter | None = None
        self._heard_at = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._beats: dict[str, dict[str, Any]] = {}
        self._flush: asyncio.TimerHandle | None = None
        self.health = Health(
            HealthSettings.from_environment(),
            node=config.node,
            users=self._witness.local_ranks,
            post=self._post,
            send=self._send,
            emit=self.events.emit,
        )

    async def run(self) -> None:
        """Serve until a coordinator says so or none is heard for a lease; no worker is left afterwards."""
        main = asyncio.current_task()
        assert main is not None
        self.events.emit("agent_started", pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
        self._loop.add_signal_handler(signal.SIGTERM, main.cancel)
        self.health.start()
        checks = asyncio.create_task(self._check_forever(main))
        with contextlib.suppress(asyncio.CancelledError):
            while not await self._follow():
                await asyncio.sleep(RECONNECT_S)
        checks.cancel()
        for process in self._processes.values():
            process.popen.kill()
        for process in self._processes.values():
            self._record_exit(process, process.popen.wait())

    async def _follow(self) -> bool:
        """Do what one coordinator says; true if it has said that the job has ended."""
        try:
            reader, self._upward = await asyncio.open_connection(*self.config.coordinator, limit=LINE_LIMIT)
        except OSError:
            return False
        hello = {"op": "hello", "node": self.config.node, "token": self.config.token}
        self._send({**hello, "workers": self._witness.accounts()})
        self.health.say_again()
        async for message in messages(reader):
            self._heard_at = time.monotonic()
            if message["op"] == "end":
                self._upward.close()
                return True
            self._witness.ordered(message)
            await self._command(message)
        # Its process has ended, or it has given this node up: the next hello tells. Meanwhile the lease runs on.
        self._upward.close()
        return False

    async def _command(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "ping":
                self._send({"op": "pong"})
            case "spawn":
                await self._spawn(message["worker"])
            case "kill":
                process = self._processes.get(message["worker"])
                if process is not None:
                    process.popen.kill()
            case "probe":
                self._task(self._probe(message["number"], message["peers"]))
            case _:
                if "world" in message:  # whole, so it is the first that some of these workers hear
                    message = {**message, "local_ranks": self._seats(message)}
                line = encode({name: value for name, value in message.items() if name != "to"})
                for worker in message.get("to", ()):
                    process = self._processes.get(worker)
                    if process is not None and not process.writer.is_closing():
                        process.writer.write(line)

    def _seats(self, message: dict[str, Any]) -> dict[str, int]:
        """The local ranks of who is addressed: which GPU of this node each of them uses."""
        seats = {worker: seat for worker, seat in self._witness.local_ranks().items() if worker in message["to"]}
        for worker, local_rank in seats.items():
            self.events.emit("worker_seated", worker=worker, local_rank=local_rank)
        return seats

    async def _probe(self, number: int, peers: Mapping[str, tuple[str, int]]) -> None:
        """Try to reach a worker of every other node, all at once, and say which nodes are out of reach."""
        others = [node for node in peers if node != self.config.node]
        reached = await asyncio.gather(*(_answers(*peers[node]) for node in others))
        unreached = [node for node, well in zip(others, reached, strict=True) if not well]
        self._send({"op": "probed", "node": self.config.node, "number": number, "unreached": unreached})

    async def _spawn(self, worker: str) -> None:
        log = self.logs / f"{worker}.log" if self.logs is not None else None
        try:
            new = await start_worker(self.config.command, partial(self._environment, worker), log)
        except CannotStart as error:
            self._tell_of(worker, {"op": "script_failed", "error": str(error)})
            self._tell_of(worker, {"op": "exited", "code": CANNOT_START})
            return
        process = Process(worker=worker, popen=new.popen, pidfd=new.pidfd, writer=new.writer, wire=new.wire)
        self._processes[worker] = process
        self.events.emit("worker_spawned", worker=worker, pid=new.popen.pid, start_ticks=start_ticks(new.popen.pid))
        asyncio.get_running_loop().add_reader(process.pidfd, self._exited, process)
        process.relay = self._task(self._relay(process, new.reader))

    def _environment(self, worker: str, control_fd: int, wire_fd: int) -> dict[str, str]:
        config = self.config
        ours = {
            "PHOENIX_WORKER": worker,
            "PHOENIX_NODE": config.node,
            "PHOENIX_CONTROL_FD": str(control_fd),
            "PHOENIX_TRIPWIRE_FD": str(wire_fd),
            "PHOENIX_STORE": f"{config.store[0]}:{config.store[1]}",
            "PHOENIX_TOKEN": config.token,
            "PHOENIX_ADDRESS": config.address,
            "PHOENIX_HEARTBEAT_S": str(config.detection.heartbeat_s),
            "WORLD_SIZE": str(config.world_size),
            "LOCAL_WORLD_SIZE": str(config.local_world_size),
            "MASTER_ADDR": config.store[0],
            "MASTER_PORT": str(config.store[1]),
            "PYTHONUNBUFFERED": "1",
        }
        if config.run_dir:
            ours["PHOENIX_RUN_DIR"] = config.run_dir
        # As torchrun does: several ranks share a machine, each takes one core unless told otherwise.
        return {"OMP_NUM_THREADS": "1", **os.environ, **config.environment, **ours}

    async def _relay(self, process: Process, reader: asyncio.StreamReader) -> None:
        async for message in messages(reader):
            process.leaving = process.leaving or message["op"] == "leaving"
            # Before it parks a worker imports, which can keep the heartbeat's thread from running.
            begun = process.heard_at is not None or message["op"] == "parked"
            process.heard_at = time.monotonic() if begun and not process.leaving else None
            if message["op"] == "parked" and process.wire is not None:
                threading.Thread(target=self._watch, args=(process,), name="phoenix-tripwire", daemon=True).start()
            self._witness.said(process.worker, message)
            if message["op"] == "progress":
                self._beats[process.worker] = {name: value for name, value in message.items() if name != "op"}
                if self._flush is None:
                    self._flush = self._loop.call_later(self.config.detection.heartbeat_s / 2, self._send_beats)
            else:
                self._send_beats()  # what a worker says keeps its order
                self._send({**message, "worker": process.worker})

    def _send_beats(self) -> None:
        """The heartbeats of all workers of this node on one line: the coordinator reads one a node, not one a rank."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._beats:
            self._send({"op": "beats", "beats": self._beats})
            self._beats = {}

    def _watch(self, process: Process) -> None:
        """A thread per worker, asleep in the kernel until the worker dies."""
        assert process.wire is not None
        if process.wire.wait():
            self._post(lambda: self._task(self._tripped(process)))

    def _post(self, callback: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # of a thread: the loop is closed, the job is over
            self._loop.call_soon_threadsafe(callback)

    async def _tripped(self, process: Process) -> None:
        for _ in range(LAST_READS):
            await asyncio.sleep(0)  # what lies in its socket comes first: it may have said that it leaves
        if not process.leaving:
            self._suspect(process, "exit", "its process is ending")

    def _exited(self, process: Process) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.wire is not None:
            process.wire.close()
        del self._processes[process.worker]
        self._task(self._report_exit(process, process.popen.wait()))

    async def _report_exit(self, process: Process, code: int) -> None:
        """Its last words first: they may still lie in the socket."""
        if process.relay is not None:
            await asyncio.wait({process.relay}, timeout=LAST_WORDS_S)
        process.writer.close()
        self._tell_of(process.worker, {"op": "exited", "code": code})
        self._record_exit(process, code)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)
        return task

    def _record_exit(self, process: Process, code: int) -> None:
        self.events.emit("worker_exited", worker=process.worker, pid=process.popen.pid, code=code)

    def _tell_of(self, worker: str, message: dict[str, Any]) -> None:
        self._witness.said(worker, message)
        self._send({**message, "worker": worker})

    def _send(self, message: dict[str, Any]) -> None:
        if self._upward is not None and not self._upward.is_closing():
            self._upward.write(encode(message))

    # ---------------------------------------------------------------- live processes that do not run

    async def _check_forever(self, main: asyncio.Task[None]) -> None:
        previous = time.monotonic()
        while True:
            await asyncio.sleep(CHECK_S)
            now = time.monotonic()
            if now - previous > 10 * CHECK_S:
                # This agent itself was not scheduled: what it did not hear meanwhile proves nothing.
                for process in self._processes.values():
                    process.heard_at = now if process.heard_at is not None else None
                self._heard_at = now
            previous = now
            if now - self._heard_at > self.config.detection.lease_s:
                tell("phoenix: the coordinator is silent; this node ends its workers")
                main.cancel()
            for process in self._processes.values():
                self._check(process, now)
            self.health.look(now)

    def _check(self, process: Process, now: float) -> None:
        detection = self.config.detection
        if process_state(process.popen.pid) == "T":
            process.stopped_since = process.stopped_since or now
            if now - process.stopped_since >= detection.stopped_s:
                self._suspect(process, "stopped", f"process {process.popen.pid} is stopped by a signal")
        else:
            process.stopped_since = None
        silent_s = now - process.heard_at if process.heard_at is not None else 0.0
        if silent_s < detection.silent_s / 2:
            process.looks.clear()
            return
        process.looks.append(wants_to_run(process.popen.pid))
        starved = sum(process.looks) > STARVED_SHARE * len(process.looks)
        if silent_s > (detection.starved_s if starved else detection.silent_s):
            self._suspect(process, "silent", f"no heartbeat for {silent_s:.1f} s")

    def _suspect(self, process: Process, cause: str, detail: str) -> None:
        if not process.suspected:
            process.suspected = True
            self._tell_of(process.worker, {"op": "suspected", "cause": cause, "detail": detail})


async def _answers(host: str, port: int) -> bool:
    """Whether a connection to there can be opened in time. One that is refused has arrived: only silence counts."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), PROBE_S)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _serve(config: AgentConfig) -> None:
    await Agent(config).run()


def main() -> None:
    # A terminal's Ctrl-C goes to the whole group; the launcher alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not (given := sys.stdin.read()):
        sys.exit(1)  # the launcher has died before it could say what node this is
    config = AgentConfig.from_json(json.loads(given))
    with contextlib.suppress(ConnectionError):
        asyncio.run(_serve(config))


if __name__ == "__main__":
    main()
