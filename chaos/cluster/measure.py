"""How fast, how late and how lossy a way between two parties is, found out with packets."""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Final

from chaos.cluster import namespaces
from chaos.cluster.layout import Network, Party, Plane

LIMIT_S: Final = 5.0
_PINGS, _DATAGRAMS = 5, 400
_QUIET_S: Final = 0.3


@contextlib.contextmanager
def connected(
    network: Network, plane: Plane, sender: str, receiver: str
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    parties = {party.name: party for party in network.parties}
    with namespaces.inside(parties[receiver].namespace):
        server = socket.create_server((parties[receiver].address[plane], 0))
    with server:
        with namespaces.inside(parties[sender].namespace):
            source = socket.create_connection(server.getsockname(), timeout=LIMIT_S)
        with source:
            sink, _ = server.accept()
            with sink:
                yield source, sink


class Connection:
    """From one party to another on one network; sockets are made inside of both for each measurement."""

    def __init__(self, network: Network, plane: Plane, sender: str, receiver: str) -> None:
        parties = {party.name: party for party in network.parties}
        self._network, self._plane = network, plane
        self._sender, self._receiver = parties[sender], parties[receiver]

    def mbit_s(self, amount: int) -> float:
        """Of one TCP connection, over `amount` bytes or as many as pass in the time limit; none where none is made."""
        try:
            with connected(self._network, self._plane, self._sender.name, self._receiver.name) as ends:
                return _mbit_s(*ends, amount)
        except TimeoutError:
            return 0.0

    def round_trip_s(self) -> float:
        """The median of a few; infinite where nothing comes back in the time limit."""
        with self._socket(self._sender) as here, self._socket(self._receiver) as there:
            times = []
            for number in range(_PINGS):
                begun, ping = time.monotonic(), str(number).encode()
                here.sendto(ping, there.getsockname())
                if not _arrives(there, ping):
                    return float("inf")
                there.sendto(ping, here.getsockname())
                if not _arrives(here, ping):
                    return float("inf")
                times.append(time.monotonic() - begun)
            return statistics.median(times)

    def lost_percent(self) -> float:
        """Of a few hundred datagrams, sent one by one."""
        with self._socket(self._sender) as here, self._socket(self._receiver) as there:
            arrived = 0
            for _ in range(_DATAGRAMS):
                here.sendto(b"x", there.getsockname())
                arrived += bool(select.select([there], [], [], 0)[0] and there.recv(1))
            while select.select([there], [], [], _QUIET_S)[0]:
                arrived += bool(there.recv(1))
            return 100.0 * (_DATAGRAMS - arrived) / _DATAGRAMS

    def _socket(self, party: Party) -> socket.socket:
        with namespaces.inside(party.namespace):
            opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind((party.address[self._plane], 0))
        return opened


def _arrives(there: socket.socket, ping: bytes) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while (left := deadline - time.monotonic()) > 0 and select.select([there], [], [], left)[0]:
        if there.recv(64) == ping:
            return True
    return False


def _mbit_s(source: socket.socket, sink: socket.socket, amount: int) -> float:
    source.setblocking(False)
    sent = received = 0
    block = bytes(1 << 14)
    begun = time.monotonic()
    while received < amount and time.monotonic() - begun < LIMIT_S:
        readable, writable, _ = select.select([sink], [source] if sent < amount else [], [], 0.1)
        if writable:
            sent += source.send(block[: amount - sent])
        if readable:
            received += len(sink.recv(1 << 18))
    return received * 8 / 1e6 / (time.monotonic() - begun)
