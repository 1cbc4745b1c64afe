"""Keeps a job led: one coordinator after the other where their processes end, and the rendezvous store beside them.

The store lives here, in the launcher's process, and not with the coordinator: groups that are being formed go on being
formed while nobody leads.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from phoenix_core.advice import tell
from phoenix_core.coordinator import EXIT_CODES
from phoenix_core.storeserver import StoreServer
from phoenix_core.wire import LINE_LIMIT

POLL_S: Final = 0.2
CRASHES, WITHIN_S = 3, 60.0
"""A coordinator that ends without a word more often than that has a reason that the next one will meet too."""


PATIENCE_S: Final = 10.0
"""For a coordinator that was told to end, or whose agents have all ended: one that is stopped would never end."""


class Keeper:
    """`start` starts a coordinator; `interrupted` gives the signal that is to be passed on to it, once there is one;
    `deserted` says whether every agent has ended."""

    def __init__(
        self,
        start: Callable[[], subprocess.Popen[str]],
        interrupted: Callable[[], int | None],
        deserted: Callable[[], bool] = lambda: False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._start = start
        self._interrupted = interrupted
        self._deserted = deserted
        self._patience_s = patience_s
        self._given_up = False
        self._crashes: deque[float] = deque()

    async def run(self, store: socket.socket, token: str) -> int:
        """The exit code of the coordinator that has ended the job, or 1 where none could."""
        server = await asyncio.start_server(StoreServer(token).serve, sock=store, limit=LINE_LIMIT)
        while True:
            code = await self._end_of(self._start())
            if self._interrupted() is not None or code in EXIT_CODES.values():
                break
            if self._given_up:
                code = 1
                break
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if not self._may_start_again(time.monotonic()):
                often = f"for the {CRASHES + 1}th time within {WITHIN_S:.0f} s"
                tell(f"phoenix run: the coordinator {how}, {often}; the job stops")
                code = 1
                break
            tell(f"phoenix: the coordinator {how}; another one is started")
        server.close()
        return code

    def _may_start_again(self, now: float) -> bool:
        self._crashes.append(now)
        while now - self._crashes[0] > WITHIN_S:
            self._crashes.popleft()
        return len(self._crashes) <= CRASHES

    async def _end_of(self, process: subprocess.Popen[str]) -> int:
        """Its exit code, at once; an interruption is passed on to it, whenever it came."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, ended.set)
        expected_since: float | None = None
        while not ended.is_set():
            if (signum := self._interrupted()) is not None:
                process.send_signal(signum)
            if signum is not None or self._deserted():
                expected_since = expected_since or time.monotonic()
                if time.monotonic() - expected_since > self._patience_s:
                    self._give_up(process)
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), POLL_S)
        loop.remove_reader(pidfd)
        os.close(pidfd)
        return process.wait()

    def _give_up(self, process: subprocess.Popen[str]) -> None:
        if not self._given_up:
            why = "every agent has ended" if self._interrupted() is None else "it was told to end"
            tell(
                f"phoenix run: the coordinator (pid {process.pid}) does not answer though {why} "
                f"{self._patience_s:.0f} s ago; it is killed and the job stops"
            )
        self._given_up = True
        process.kill()
