"""Real packets that tell between whom the network works: what a receipt says of a partition was seen, not assumed."""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Iterable, Set
from typing import Final

from chaos.cluster import namespaces
from chaos.cluster.layout import Network, Plane
from chaos.cluster.shapes import Block

Way = Block
"""From whom to whom on which network; what a partition names to block it, a probe names to try it."""

PATIENCE_S: Final = 5.0
"""Packets of one machine arrive within microseconds, unless it is too busy to run us."""
LATE_S: Final = 0.05
"""After the last packet that must come, one that must not come would have come."""
RESEND_S: Final = 0.1


class Prober:
    """One datagram socket per party and network, each inside the namespace of its party."""

    def __init__(self, network: Network) -> None:
        self._sockets: dict[tuple[Plane, str], socket.socket] = {}
        self._rounds = itertools.count(1)
        for party in network.parties:
            with namespaces.inside(party.namespace):
                for plane, address in party.address.items():
                    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    self._sockets[plane, party.name] = opened
                    opened.bind((address, 0))
                    opened.setblocking(False)

    @property
    def ways(self) -> frozenset[Way]:
        return frozenset(
            (plane, sender, receiver)
            for (plane, sender), (other, receiver) in itertools.product(self._sockets, repeat=2)
            if plane is other and sender != receiver
        )

    def passing(self, ways: Iterable[Way], expected: Set[Way], patience_s: float = PATIENCE_S) -> frozenset[Way]:
        """Of `ways`, those on which a packet arrived until all expected ones had, or the patience was at its end."""
        number = next(self._rounds)
        # The doubtful ones are sent first: when the last of the expected has come, they had the same time and more.
        order = sorted(ways, key=lambda way: way in expected)
        deadline = time.monotonic() + patience_s
        arrived: set[Way] = set()
        while True:
            for way in order:
                if way not in arrived:
                    self._send(way, number)
            until = min(deadline, time.monotonic() + RESEND_S)
            while not expected <= arrived and time.monotonic() < until:
                arrived |= self._receive(number, until - time.monotonic())
            if expected <= arrived or time.monotonic() >= deadline:
                doubtful = bool(set(order) - expected)
                return frozenset(arrived | self._receive(number, LATE_S if doubtful else 0.0)) & frozenset(order)

    def _send(self, way: Way, number: int) -> None:
        plane, sender, receiver = way
        try:
            address = self._sockets[plane, receiver].getsockname()
            self._sockets[plane, sender].sendto(f"{number} {sender}".encode(), address)
        except OSError:
            return  # the network of the sender refuses to take it: it does not arrive

    def _receive(self, number: int, seconds: float) -> set[Way]:
        """What has come of this round within the time; a late packet of an earlier round proves nothing now."""
        arrived: set[Way] = set()
        by_socket = {opened: place for place, opened in self._sockets.items()}
        for opened in select.select(list(by_socket), [], [], max(0.0, seconds))[0]:
            plane, receiver = by_socket[opened]
            while True:
                try:
                    said, _, sender = opened.recv(64).decode().partition(" ")
                except BlockingIOError:
                    break
                if said == str(number):
                    arrived.add((plane, sender, receiver))
        return arrived

    def close(self) -> None:
        for opened in self._sockets.values():
            opened.close()
