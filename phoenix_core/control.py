"""The worker's line to its node's agent: commands come in, heartbeats and reports go out."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from phoenix_core.advice import for_the_job, tell
from phoenix_core.sockets import keep_out
from phoenix_core.tripwire import Tripwire
from phoenix_core.wire import decode, encode

STOP_LIMIT_S: Final = 2.0
"""How long a process that leaves waits for its heart to stop, which on a busy machine may be just asking torch."""


class Control:
    """Two threads: one reads commands, one beats. Neither holds a lock that the training loop takes."""

    def __init__(self, fd: int, tripwire_fd: int, heartbeat_s: float) -> None:
        os.set_inheritable(fd, False)
        os.set_inheritable(tripwire_fd, False)
        self._tripwire = Tripwire.attach(tripwire_fd)
        self._armed = threading.Event()
        self._socket = socket.socket(fileno=fd)
        keep_out(self._socket)
        self._heartbeat_s = heartbeat_s
        self._sending = threading.Lock()
        self._leaving = threading.Event()
        self._beating: threading.Thread | None = None

    def start(self, on_command: Callable[[dict[str, Any]], None], progress: Callable[[], dict[str, object]]) -> None:
        """`on_command` runs in the reading thread; `progress` gives the heartbeat's content."""
        threading.Thread(target=self._read, args=(on_command,), name="phoenix-control", daemon=True).start()
        self._armed.wait()
        self._beating = threading.Thread(target=self._beat, args=(progress,), name="phoenix-heartbeat", daemon=True)
        self._beating.start()

    def send(self, op: str, **fields: object) -> None:
        """A report upwards; where the agent is gone the reading thread ends the process."""
        with suppress(OSError), self._sending:
            self._socket.sendall(encode({"op": op, **fields}))

    def leave(self) -> None:
        """The end of the line is no longer a reason to die, nor is silence.

        Returns once the heart has stopped: a thread that comes back from torch while the interpreter ends aborts the
        process.
        """
        self._leaving.set()
        self._pass_on()
        self.send("leaving")
        if self._beating is not None:
            self._beating.join(STOP_LIMIT_S)

    def _read(self, on_command: Callable[[dict[str, Any]], None]) -> None:
        try:
            self._tripwire.arm()
        finally:
            self._armed.set()  # without the wire a death is noticed later, by the pidfd
        with suppress(OSError), self._socket.makefile("rb") as reader:
            for line in reader:
                on_command(decode(line))
        if not self._leaving.is_set():
            tell("phoenix: the agent of this node is gone; this worker ends")
            os._exit(1)

    def _beat(self, progress: Callable[[], dict[str, object]]) -> None:
        while not self._leaving.is_set():
            self._pass_on()
            self.send("progress", **progress())
            self._leaving.wait(self._heartbeat_s)

    def _pass_on(self) -> None:
        """Either of two threads may come here: each thing is taken by one of them."""
        with suppress(IndexError):
            while True:
                self.send("advised", about=(text := for_the_job.popleft()), text=text)
