"""The rendezvous store as torch sees it: a client of the launcher's key-value service."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import HashStore, Store

from phoenix_core.errors import GenerationSuperseded, PeerLost
from phoenix_core.settings import WorkerSettings
from phoenix_core.sockets import keep_out
from phoenix_core.wire import decode, encode

POLL_S = 0.5
"""How long one request waits on the server: between two of them the client looks whether it was superseded."""


class ControlStore(Store):
    """Keys of one job. Safe to use from several threads; each has a connection of its own.

    `superseded` is asked while a key is awaited; once it returns true the wait ends in
    GenerationSuperseded, since the rank that should set the key may be dead.
    """

    def __init__(self, address: tuple[str, int], token: str, superseded: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._address = address
        self._token = token
        self._superseded = superseded
        self._local = threading.local()

    def _ask(self, **request: object) -> dict[str, Any]:
        file = getattr(self._local, "file", None)
        if file is None:
            connection = socket.create_connection(self._address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_out(connection)
            file = self._local.file = connection.makefile("rwb")
            connection.close()  # the file keeps the descriptor
            file.write(encode({"op": "hello", "token": self._token}))
        file.write(encode(request))
        file.flush()
        line = file.readline()
        if not line:
            raise PeerLost("the launcher closed the rendezvous store's connection")
        return decode(line)

    def close(self) -> None:
        """Close this thread's connection."""
        file = getattr(self._local, "file", None)
        if file is not None:
            file.close()
            del self._local.file

    def _until_present(self, keys: Sequence[str]) -> None:
        """However long it takes: a member may still be in its optimizer, and one that died is announced."""
        while not self._ask(op="wait", keys=list(keys), timeout=POLL_S)["value"]:
            if self._superseded():
                raise GenerationSuperseded(f"a newer generation was announced while waiting for {list(keys)}")

    # The names below are those that torch calls.

    def clone(self) -> ControlStore:
        return ControlStore(self._address, self._token, self._superseded)

    def set(self, key: str, value: str | bytes) -> None:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(op="set", key=key, value=base64.b64encode(raw).decode())

    def get(self, key: str) -> bytes:
        self._until_present([key])
        return base64.b64decode(self._ask(op="get", key=key, timeout=POLL_S)["value"])

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(op="add", key=key, amount=amount)["value"])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._until_present(keys)

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask(op="check", keys=list(keys))["value"])

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(op="delete", key=key)["value"])

    def num_keys(self) -> int:
        return int(self._ask(op="count")["value"])


def connected(settings: WorkerSettings | None, superseded: Callable[[], bool]) -> Store:
    """The store of a worker's job, or of a script that runs alone."""
    return HashStore() if settings is None else ControlStore(settings.store, settings.token, superseded)
