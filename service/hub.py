"""Wakes the event streams of a run when its events are in the database."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress


class Hub:
    """Called from the ingest's thread, waited on in the event loop.

    A reader takes `version()` before it looks into the database and waits for a later one, so that
    what arrives in between wakes it too. With a second service on the same database no wake-up may
    come at all: waiting is therefore bounded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: Counter[str] = Counter()
        self._waiting: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """The service stops: streams end."""
        return self._closed

    def version(self, run: str) -> int:
        return self._versions[run]

    def notify(self, run: str) -> None:
        with self._lock:
            self._versions[run] += 1
            _wake(self._waiting.get(run, set()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for waiting in self._waiting.values():
                _wake(waiting)

    async def wait(self, run: str, seen: int, timeout_s: float) -> None:
        """Returns once `version(run)` is not `seen`, at `close()`, or after `timeout_s`."""
        item = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self._closed or self._versions[run] != seen:
                return
            self._waiting.setdefault(run, set()).add(item)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(item[1].wait(), timeout_s)
        finally:
            with self._lock:
                self._waiting[run].discard(item)
                if not self._waiting[run]:
                    del self._waiting[run]


def _wake(waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    for loop, woken in waiting:
        with suppress(RuntimeError):  # The loop has been closed: nobody waits there any more.
            loop.call_soon_threadsafe(woken.set)
