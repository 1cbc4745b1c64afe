"""The trial's end of a warden: start a runtime, learn how it ended, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.checkout import import_path
from chaos.errors import TrialError
from chaos.procfs import all_processes, has_environment, start_ticks
from chaos.roster import WorkerInfo
from chaos.runtimes import Command

MARKER: Final = "PHOENIX_TRIAL"
GRACE_S: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a launch ended. `code` is None if the warden died before it could tell; `left` outlived the launcher."""

    code: int | None
    left: tuple[str, ...]


class Launch:
    """A running runtime. `token` marks the environment of everything it starts. Use `with`: the exit ends it."""

    def __init__(self, command: Command, *, log: Path, token: str, grace_s: float = GRACE_S) -> None:
        self._token = token
        self._grace_s = grace_s
        self._buffer = b""
        self._code: int | None = None
        self._left: tuple[str, ...] = ()
        self.ended: Ended | None = None
        self.launcher: WorkerInfo | None = None
        order = json.dumps({"argv": list(command.argv), "log": str(log), "grace_s": grace_s})
        try:
            self._warden = subprocess.Popen(
                [sys.executable, "-m", "chaos.warden", order],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(command, token),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise TrialError(f"cannot start a process: {error.strerror}") from error
        assert self._warden.stdout is not None
        os.set_blocking(self._warden.stdout.fileno(), False)

    @property
    def keeper(self) -> int:
        """The warden: what this launch started descends from it, also what has lost its parent."""
        return self._warden.pid

    def fileno(self) -> int:
        """Readable when `poll` has news."""
        assert self._warden.stdout is not None
        return self._warden.stdout.fileno()

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs. Does not block."""
        while self.ended is None:
            try:
                block = os.read(self.fileno(), 65536)
            except BlockingIOError:
                break
            if not block:
                self._close()
                break
            *lines, self._buffer = (self._buffer + block).split(b"\n")
            for line in lines:
                status = json.loads(line)
                self._meet(status.get("started"))
                self._code = status.get("exited", self._code)
                self._left = tuple(status.get("left", self._left))
        return self.ended

    def _meet(self, pid: int | None) -> None:
        """Who the launcher is; one that has ended already is nobody's target."""
        if pid is not None and (ticks := start_ticks(pid)) is not None:
            since = time.monotonic_ns()
            self.launcher = WorkerInfo(worker="launcher", node=None, pid=pid, start_ticks=ticks, since=since)

    def end(self) -> None:
        """Ask for the end of everything; `poll` tells when it is done. May be called twice."""
        assert self._warden.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._warden.stdin.close()

    def _close(self) -> None:
        self.end()
        code = self._warden.wait()
        assert self._warden.stdout is not None
        self._warden.stdout.close()
        # Whatever happened to the warden (somebody may have killed it): nothing of this launch stays.
        strays = sweep(self._token)
        if code != 0:
            self.ended = Ended(code=None, left=())  # what was swept had no time to end by itself: that is no leak
        else:
            self.ended = Ended(code=self._code, left=(*self._left, *strays))

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        deadline = time.monotonic() + self._grace_s + 10.0
        while self.poll() is None:
            if time.monotonic() >= deadline:
                self._warden.kill()
            with contextlib.suppress(ValueError):
                _wait_readable(self.fileno(), 0.2)


def marked(token: str) -> dict[int, str]:
    """Every living process that carries this launch's mark, by pid."""
    entry = f"{MARKER}={token}"
    return {
        stat.pid: f"{stat.name} (pid {stat.pid})"
        for stat in all_processes()
        if not stat.ended and has_environment(stat.pid, entry)
    }


def sweep(token: str) -> tuple[str, ...]:
    """Kill what carries the mark, until nothing does (or cannot be killed); what had to be killed, in words."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + GRACE_S
    while (left := marked(token)) and time.monotonic() < deadline:
        killed |= left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return tuple(killed.values())


def _environment(command: Command, token: str) -> dict[str, str]:
    # Workloads are modules of this checkout (`-m benchmarks...`).
    return {**os.environ, "PYTHONPATH": import_path(), **command.environment, MARKER: token}


def _wait_readable(descriptor: int, seconds: float) -> None:
    select.select([descriptor], [], [], seconds)
