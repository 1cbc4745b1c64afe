"""Sends this rank's small states to their holder, off the training thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from phoenix_core.errors import PhoenixError
from phoenix_core.transport import PeerClient


class Replicator:
    """One holder in one generation; `acked` is the greatest boundary that the holder has verified."""

    def __init__(self, owner: int, holder: tuple[str, int] | None, token: str, on_ack: Callable[[], None]) -> None:
        """`holder` None (a world of one): every state counts as safe at once."""
        self.acked = -1
        self._owner = owner
        self._holder = holder
        self._token = token
        self._on_ack = on_ack
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        if holder is not None:
            threading.Thread(target=self._run, name="phoenix-replicate", daemon=True).start()

    def send(self, boundary: int, payload: bytes) -> None:
        if self._holder is None:
            self.acked = boundary
        else:
            self._queue.put((boundary, payload))

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        # A dead holder is no error here: its death is announced, and the next generation has another one.
        assert self._holder is not None
        with suppress(PhoenixError, OSError):
            client = PeerClient(self._holder, self._token)
            try:
                while (item := self._queue.get()) is not None:
                    client.put(self._owner, *item)
                    self.acked = max(self.acked, item[0])
                    self._on_ack()
            finally:
                client.close()
