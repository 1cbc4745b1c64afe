"""Isolated nodes for tests: a cluster that exists while a test looks at it, and a witness that is not our own probe."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.cluster.abilities import abilities
from chaos.cluster.layout import Network, Plane
from tests.support import wait_until

_IDLE = "import signal; signal.pause()"
_SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
while block := peer.recv(64):
    peer.sendall(block)
"""
_TALK = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    peer.sendall(b"x")
    if not peer.recv(64):
        sys.exit("closed")
    sys.stdout.write("x")
    sys.stdout.flush()
    time.sleep(0.005)
"""


def skip_where_refused() -> None:
    """Skips the test, with the machine's reason, where nodes cannot be isolated or parted."""
    if reason := abilities().trouble("network_partition"):
        pytest.skip(reason)


@dataclass(frozen=True)
class Cluster:
    """`holder` is the process that keeps the namespaces, as a job's launcher does."""

    holder: subprocess.Popen[bytes]
    file: Path
    network: Network

    def inside(self, node: str) -> list[str]:
        """The command prefix that enters a node from outside of the cluster."""
        (party,) = (party for party in self.network.parties if party.name == node)
        target = f"/proc/{self.network.pid}"
        return ["nsenter", f"--user={target}/ns/user", "--preserve-credentials", f"--net={target}/fd/{party.namespace}"]

    def address(self, node: str, plane: Plane) -> str:
        (party,) = (party for party in self.network.parties if party.name == node)
        return party.address[plane]


def on_nodes(file: Path, nodes: int) -> list[str]:
    """The command prefix that makes so many isolated nodes."""
    names = ",".join(f"n{index}" for index in range(nodes))
    return [sys.executable, "-m", "chaos.cluster.build", "--nodes", names, "--file", str(file), "--"]


@contextlib.contextmanager
def cluster(directory: Path, nodes: int) -> Iterator[Cluster]:
    file = directory / "network.json"
    holder = subprocess.Popen([*on_nodes(file, nodes), sys.executable, "-S", "-c", _IDLE])
    try:
        network = wait_until(lambda: Network.read(file), "the cluster is there")
        assert network is not None
        yield Cluster(holder, file, network)
    finally:
        holder.kill()
        holder.wait()


class Witness:
    """One TCP connection between two nodes on which bytes go to and fro without a pause. Nothing of ours is in it."""

    def __init__(self, there: Cluster, client: str, server: str, plane: Plane = Plane.DATA) -> None:
        python = [sys.executable, "-S", "-c"]
        address = there.address(server, plane)
        self._server = subprocess.Popen([*there.inside(server), *python, _SERVE, address], stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        port = self._server.stdout.readline().decode().strip()
        self._client = subprocess.Popen(
            [*there.inside(client), *python, _TALK, address, port],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it is broken on purpose
            bufsize=0,
        )

    def __enter__(self) -> Witness:
        self.must_talk()
        return self

    def must_talk(self) -> None:
        """What is said now arrives: more than can have been on its way before."""
        assert self._client.stdout is not None
        self.drain()
        assert self._client.stdout.read(2), "the connection was closed"

    def drain(self) -> int:
        """How many bytes have made the way since the last look."""
        assert self._client.stdout is not None
        count = 0
        while self._said(0.0) and (block := os.read(self._client.stdout.fileno(), 4096)):
            count += len(block)
        return count

    def _said(self, within_s: float) -> bool:
        assert self._client.stdout is not None
        return bool(select.select([self._client.stdout], [], [], within_s)[0])

    def must_be_silent(self) -> None:
        """Nothing makes the way, for as long as thousands of messages would take."""
        self.drain()
        assert not self._said(0.5), "packets pass"

    def must_be_closed(self) -> None:
        assert self._client.wait(timeout=20) != 0

    def __exit__(self, *_: object) -> None:
        for process in (self._client, self._server):
            process.kill()
            process.communicate()
