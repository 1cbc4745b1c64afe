"""Sockets of this process as the kernel lists them: how a blocked gloo collective is woken.

gloo offers no way to stop a collective that waits (its `abort` returns and the wait goes on). Shutting
its connected sockets down from another thread ends every wait within milliseconds, but one that is in the middle of its
bytes (see work.py).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

PATH_LIMIT_S: Final = 2.0
"""How long a path may be dead before a connection over it is given up. It is not a limit of the answer's time."""

_ours: set[str] = set()


def open_sockets() -> set[tuple[int, str]]:
    """(descriptor, kernel name such as `socket:[123]`) of every socket of this process."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since it was listed
            name = os.readlink(f"/proc/self/fd/{entry}")
            if name.startswith("socket:"):
                found.add((int(entry), name))
    return found


def keep_out(connection: socket.socket) -> None:
    """This socket is the runtime's own: `shut_down` must never touch it."""
    _ours.add(os.readlink(f"/proc/self/fd/{connection.fileno()}"))


def give_up_on_a_dead_path(connection: socket.socket) -> None:
    """Let the kernel end `connection` once the peer's kernel has confirmed nothing for PATH_LIMIT_S.

    For a transfer that can be begun anew: where a link has been away TCP waits ever longer before it tries again,
    while a new connection gets through as soon as the link is back. Who waits for an answer probes the path too.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * PATH_LIMIT_S))
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, option, 1)  # in seconds; the least that there is
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def shut_down(sockets: set[tuple[int, str]]) -> None:
    """Shut down those of `sockets` that are still the same, connected and not our own.

    A listening one is left alone: gloo's own thread would throw and abort the process.
    """
    for descriptor, name in sockets:
        with suppress(OSError):
            copy = os.dup(descriptor)  # first: the number may be taken by another file at any moment
            if name in _ours or os.readlink(f"/proc/self/fd/{copy}") != name:
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as connection:
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_RDWR)
