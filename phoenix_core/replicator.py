"""Sends this rank's small states to their holder, off the training thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from phoenix_core.bandwidth import Throttle
from phoenix_core.errors import PeerLost, PhoenixError
from phoenix_core.kept import Payload
from phoenix_core.transport import PeerClient

RETRY_S = 0.05


class Replicator:
    """One holder in one generation."""

    def __init__(
        self,
        owner: int,
        holder: tuple[str, int] | None,
        token: str,
        on_ack: Callable[[], None],
        kept: int,
        throttle: Throttle,
        on_differing: Callable[[int], None],
    ) -> None:
        """`holder` None (a world of one): every state counts as safe at once. It keeps `kept` boundaries.

        `on_differing(boundary)` is called where a state came without tensors that the holder turns out not to have.
        """
        self._on_differing = on_differing
        self._kept = kept
        self._throttle = throttle
        self._acked = -1
        self._owner = owner
        self._holder = holder
        self._token = token
        self._on_ack = on_ack
        self._closed = threading.Event()
        self._client: PeerClient | None = None
        self._queue: queue.Queue[tuple[int, Payload, str, str] | None] = queue.Queue()
        if holder is not None:
            threading.Thread(target=self._run, name="phoenix-replicate", daemon=True).start()

    def send(self, boundary: int, payload: Payload, sum_: str, shared: str = "") -> None:
        """`sum_` is the payload's checksum, `shared` that of tensors that the holder has too."""
        if self._holder is None:
            self._acked = boundary
        else:
            self._queue.put((boundary, payload, sum_, shared))

    def safe(self, boundary: int) -> bool:
        """Whether the holder has verified the state of `boundary`, and all that was sent of it: it may come twice."""
        return self._acked >= boundary and not self._queue.unfinished_tasks

    def close(self) -> None:
        """What is being sent is broken off: nobody waits for it any more."""
        self._closed.set()
        if (client := self._client) is not None:
            client.interrupt()
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._deliver(*item)
            self._queue.task_done()
            self._on_ack()
        if self._client is not None:
            self._client.close()

    def _deliver(self, boundary: int, payload: Payload, sum_: str, shared: str) -> None:
        """Try until the holder has confirmed. A dead one is announced, and `close` then ends this."""
        assert self._holder is not None
        while not self._closed.is_set():
            try:
                if self._client is None:
                    self._client = PeerClient(self._holder, self._token, anew=True)
                chunk = self._throttle.chunk
                put = self._client.put
                agreed = put(self._owner, boundary, payload, self._kept, sum_, self._pace, chunk, shared)
            except PhoenixError:
                if self._client is not None:
                    self._client.close()
                self._client = None
                self._closed.wait(RETRY_S)
                continue
            if not agreed:
                if not self._closed.is_set():
                    self._on_differing(boundary)
                return
            self._acked = max(self._acked, boundary)
            return

    def _pace(self, size: int) -> None:
        self._throttle.pass_on(size, self._closed)
        if self._closed.is_set():
            raise PeerLost("this holder is one of an old generation")
