"""Connection resets: the kernel breaks every TCP connection of a node, and tells the other end with a reset.

That is what `ss --kill` does: the kernel's socket diagnosis lists the sockets of a namespace and destroys those that it
is told to. The node's own end fails with ECONNABORTED, the other one with ECONNRESET; new connections work.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.cluster import namespaces
from chaos.cluster.holds import Hold, Refused
from chaos.cluster.layout import Network, Plane
from chaos.cluster.probe import Way

_SOCK_DIAG: Final = 4
_BY_FAMILY, _DESTROY = 20, 21
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_HEADER: Final = struct.Struct("=IHHII")
_ASK: Final = struct.Struct("=BBBBI")
_ESTABLISHED: Final = 1 << 1
_ID: Final = slice(4, 52)
"""Ports, addresses, interface and cookie: the identity of a socket, as listed and as it must be given to destroy it."""


class Reset:
    """The connections of a node are broken once; there is nothing to take back."""

    blocks: Final[frozenset[Way]] = frozenset()
    disturbs: Final[frozenset[Way]] = frozenset()
    on: Final = False

    def __init__(self, network: Network, node: str, planes: Sequence[Plane]) -> None:
        (self._party,) = (party for party in network.parties if party.name == node)
        self._planes = planes

    def begin(self, others: Collection[Hold]) -> Mapping[str, object]:
        at = time.monotonic_ns()
        addresses = {plane: frozenset({self._party.address[plane]}) for plane in self._planes}
        try:
            counts = {plane: reset_all(self._party.namespace, addresses[plane]) for plane in self._planes}
        except OSError as error:
            raise Refused(f"this kernel does not reset connections (CONFIG_INET_DIAG_DESTROY): {error}") from error
        if not sum(counts.values()):
            raise Refused(f"{self._party.name} has no connection on {' or '.join(self._planes)}")
        return {"at": at, "proof": {f"{plane.value}_connections": count for plane, count in counts.items()}}

    def end(self, others: Collection[Hold]) -> Mapping[str, object]:
        return {"healed": True, "proof": {}}

    def cut(self) -> None:
        return

    def heal(self) -> None:
        return


@dataclass(frozen=True)
class Connection:
    identity: bytes

    @property
    def source(self) -> str:
        return str(ipaddress.IPv4Address(self.identity[4:8]))


def reset_all(namespace: int, addresses: frozenset[str]) -> int:
    """Reset every established connection of the namespace that has one of these as its own address; how many.

    Raises OSError where the kernel cannot (CONFIG_INET_DIAG_DESTROY).
    """
    with namespaces.inside(namespace):
        diagnosis = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
    with diagnosis:
        found = [connection for connection in _listed(diagnosis) if connection.source in addresses]
        return sum(_destroyed(diagnosis, connection) for connection in found)


def _listed(diagnosis: socket.socket) -> Iterator[Connection]:
    _send(diagnosis, _BY_FAMILY, _REQUEST | _DUMP, bytes(48))
    while True:
        for kind, body in _messages(diagnosis.recv(1 << 20)):
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise _error(body)
            yield Connection(body[_ID])


def _destroyed(diagnosis: socket.socket, connection: Connection) -> bool:
    """False for one that ended by itself meanwhile."""
    _send(diagnosis, _DESTROY, _REQUEST | _ACK, connection.identity)
    ((_, body),) = _messages(diagnosis.recv(1 << 16))
    error = _error(body)
    if error.errno not in (0, errno.ENOENT):
        raise error
    return error.errno == 0


def _send(diagnosis: socket.socket, command: int, flags: int, identity: bytes) -> None:
    ask = _ASK.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ESTABLISHED) + identity
    diagnosis.send(_HEADER.pack(_HEADER.size + len(ask), command, flags, 1, 0) + ask)


def _messages(block: bytes) -> Iterator[tuple[int, bytes]]:
    while len(block) >= _HEADER.size:
        length, kind, _, _, _ = _HEADER.unpack_from(block)
        yield kind, block[_HEADER.size : length]
        block = block[(length + 3) & ~3 :]


def _error(body: bytes) -> OSError:
    (code,) = struct.unpack_from("=i", body)
    return OSError(-code, os.strerror(-code) if code else "")
