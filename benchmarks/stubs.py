"""Stub agents for benchmarks.scale: all nodes of a job in one thread, whose workers answer at once."""

from __future__ import annotations

import json
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from phoenix_core.wire import encode

CHUNK: Final = 1 << 20
LIMIT_S: Final = 600.0
BOUNDARY: Final = 100
"""Where every survivor stands when a rank dies."""
KEPT: Final = [BOUNDARY - 2, BOUNDARY - 1, BOUNDARY, BOUNDARY + 1]
"""The boundaries of small states in an offer: as many as a Gate keeps."""
WORLD_GROUP: Final = "5f0c2a91"
"""The stream of collectives that every rank takes part in."""
OP: Final = re.compile(rb'\{"op":"(\w+)"')
TO: Final = re.compile(rb'"to":(\[[^\]]*\]|"[^"]*")\}$')


class StubsFailed(Exception):
    """The coordinator ended, or nothing moved any more."""


@dataclass
class Traffic:
    """What passed in one direction. A line to several workers is one line and as many messages."""

    lines: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def count(self, op: str, size: int, recipients: int = 1) -> None:
        self.lines[op] += 1
        self.messages[op] += recipients
        self.bytes[op] += size


class StubJob:
    """A job of `ranks` stub workers, `per_node` on a node, and `spares`, each on a node of its own."""

    def __init__(self, ranks: int, *, spares: int, per_node: int, heartbeats: int) -> None:
        self.ranks = ranks
        self.world = [f"w{rank}" for rank in range(ranks)]
        self.rank_nodes = [f"n{rank // per_node}" for rank in range(ranks)]
        self.spare_nodes = [f"spare{index}" for index in range(spares)]
        self.sent, self.received = Traffic(), Traffic()
        self.world_line = b""
        self._per_node = per_node
        self._generation = self._beaten = 0
        self._joined: set[int] = set()
        self._rank_of: dict[str, int] = {worker: rank for rank, worker in enumerate(self.world)}
        self._home: dict[str, str] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._partial: dict[str, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._token = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0), backlog=128) as control:
            address = control.getsockname()
            self._process = self._start_coordinator(control, heartbeats)
        for node in dict.fromkeys((*self.rank_nodes, *self.spare_nodes)):
            self._connect(node, address)

    def _start_coordinator(self, control: socket.socket, heartbeats: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.metered"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=[control.fileno()])
        config = {
            "rank_nodes": self.rank_nodes, "spare_nodes": self.spare_nodes, "control_fd": control.fileno(),
            "token": self._token, "heartbeats": heartbeats,
        }  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(config).encode())
        process.stdin.close()
        process.stdin = None  # communicate() would flush it
        return process

    def _connect(self, node: str, address: tuple[str, int]) -> None:
        connection = socket.create_connection(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets[node], self._partial[node] = connection, bytearray()
        self._selector.register(connection, selectors.EVENT_READ, node)
        self._say(node, {"op": "hello", "node": node, "token": self._token})

    def __enter__(self) -> StubJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
        for connection in self._sockets.values():
            connection.close()
        self._selector.close()

    # ---------------------------------------------------------------- what is measured

    def form(self) -> None:
        """Every worker parks, the first world is announced and resumes."""
        self._generation = 1
        self._until(lambda: self.received.messages["resume"] == self.ranks)

    def lose(self, rank: int) -> float:
        """One rank's process ends, a spare takes over; the seconds until every rank was told to go on."""
        self.sent, self.received = Traffic(), Traffic()
        self._generation += 1
        self._joined = {rank}
        began = time.monotonic()
        victim = self.world[rank]
        self._say(self._home[victim], {"op": "exited", "worker": victim, "code": -9})
        self._until(lambda: self.received.messages["resume"] == self.ranks)
        return time.monotonic() - began

    def beat(self, heartbeats: int, pause_s: float) -> None:
        """Heartbeats of node after node, `pause_s` apart: with 0 several are read at once, as where many are late."""
        self.sent, self.received = Traffic(), Traffic()
        per_line = min(self._per_node, self.ranks)
        for begin in range(0, heartbeats, per_line):
            beats = {}
            for index in range(begin, min(begin + per_line, heartbeats)):
                round_, rank = divmod(index, self.ranks)
                count = 10 * self._beaten
                streams = {WORLD_GROUP: [count, count - 1]}
                where = {"boundary": BOUNDARY + self._beaten + round_ + 1, "phase": "backward"}
                where |= {"broken": False, "awaits": None}
                beats[self.world[rank]] = {**where, "streams": streams, "doing": {WORLD_GROUP: "allreduce 6553600"}}
            self._say(self._home[self.world[begin % self.ranks]], {"op": "beats", "beats": beats})
            if pause_s:
                self._serve(0.0)
                time.sleep(pause_s)
        self._beaten += heartbeats // self.ranks + 1

    def finish(self) -> dict[str, Any]:
        """End the job; what the coordinator measured. Raises StubsFailed where it did not end as it was told."""
        self._process.send_signal(signal.SIGTERM)
        self._until(lambda: self.received.lines["end"] == len(self._sockets))
        for connection in self._sockets.values():
            connection.close()
        if self._process.wait(timeout=LIMIT_S) != 0:
            raise self._ended()
        out, _ = self._process.communicate()
        report: dict[str, Any] = json.loads(out)
        if report["outcome"] != "stopped":
            raise StubsFailed(f"the coordinator's job {report['outcome']}: {report['reason']}")
        return report

    # ---------------------------------------------------------------- wire

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not done():
            if self._process.poll() is not None:
                raise self._ended()
            if time.monotonic() > deadline:
                raise StubsFailed(f"{self.ranks} ranks: not done within {LIMIT_S:.0f} s")
            self._serve(0.1)

    def _ended(self) -> StubsFailed:
        _, words = self._process.communicate()
        tail = words.decode(errors="replace").strip()[-500:]
        return StubsFailed(f"the coordinator ended with exit code {self._process.returncode}: {tail}")

    def _serve(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            connection, node = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            data = connection.recv(CHUNK)
            if not data:
                self._selector.unregister(connection)
                continue
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._take(node, bytes(self._partial[node]) + line if self._partial[node] else line)
                self._partial[node].clear()
            self._partial[node] += rest

    def _take(self, node: str, line: bytes) -> None:
        found, to = OP.match(line), TO.search(line, max(0, len(line) - 4096))
        assert found is not None, line[:80]
        op = found[1].decode()
        recipients = json.loads(to[1]) if to is not None else []
        recipients = [recipients] if isinstance(recipients, str) else recipients
        self.received.count(op, len(line) + 1, max(1, len(recipients)))
        if op == "spawn":
            self._park(node, json.loads(line)["worker"])
        elif op == "world" and len(line) > len(self.world_line):
            self.world_line = line
        elif op == "end":
            self._sockets[node].shutdown(socket.SHUT_WR)  # as an agent does, whose end the coordinator waits for
        for worker in recipients:
            self._answer(node, op, worker)

    def _park(self, node: str, worker: str) -> None:
        self._home[worker] = node
        number = int(worker[1:])
        address = [f"10.{number >> 11 & 255}.{number >> 3 & 255}.{number % 250 + 1}", 40000 + number % 20000]
        self._say(node, {"op": "parked", "address": address, "worker": worker})

    def _answer(self, node: str, op: str, worker: str) -> None:
        """What a worker says next, without having done it."""
        if op == "world":
            if worker not in self._rank_of:  # the spare: with one rank lost at a time its rank is known
                (rank,) = self._joined
                del self._rank_of[self.world[rank]]
                self.world[rank], self._rank_of[worker] = worker, rank
            if self._generation > 1:
                message = {"op": "quiesced", "generation": self._generation, "offer": self._offer(worker)}
                self._say(node, {**message, "worker": worker})
        if op == "plan" or (op == "world" and self._generation == 1):
            self._say(node, {"op": "restored", "generation": self._generation, "worker": worker})

    def _offer(self, worker: str) -> dict[str, object]:
        rank = self._rank_of[worker]
        if rank in self._joined:
            return {"live": None, "own": [], "whole": False, "held": {}}
        owner = owner_of(rank, self.ranks, self._per_node)
        return {"live": BOUNDARY, "own": KEPT, "whole": False, "held": {str(owner): KEPT}}

    def _say(self, node: str, message: dict[str, object]) -> None:
        data = encode(message)
        self.sent.count(str(message["op"]), len(data))
        self._sockets[node].sendall(data)


def victims(ranks: int, count: int) -> list[int]:
    """Ranks to lose, one after the other: spread over the world, none twice."""
    return [index * ranks // count for index in range(count)]


def owner_of(rank: int, ranks: int, per_node: int) -> int:
    """Whose state `rank` keeps: that of a rank of the node before, or of its neighbour where there is one node."""
    return (rank - (per_node if ranks > per_node else 1)) % ranks
