"""A service started by another command, and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from service.client import Client
from service.context import running_in

READY_S = 60.0
CANCEL_S = 90.0
END_S = 20.0
LOG_NAME = "service.log"


class StartError(Exception):
    """The service did not come up; the message is what it said."""


class BackgroundService:
    """`phoenix serve` as a child in a session of its own, so that a Ctrl-C reaches only its parent.

    Unless it shall stay, it holds the end of a pipe: should this process be killed, the service
    notices, cancels what runs, and ends as well.
    """

    def __init__(self, directory: Path, port: int, *, keep: bool, files: Sequence[Path] = ()) -> None:
        """Raises StartError where the data directory cannot be used."""
        self.secret = ""
        self._directory = directory
        self._log = directory / LOG_NAME
        arguments = ["serve", "--port", str(port), "--dir", str(directory)]
        arguments += [part for file in files for part in ("--allow-file", str(file))]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._said_before = self._log.stat().st_size if self._log.exists() else 0
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "service.cli", *arguments, *([] if keep else ["--attached"])],
                    stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise StartError(f"cannot use {directory}: {error.strerror or error}; choose another with --dir") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> str:
        """Its address, once it answers. Raises StartError with its own words if it does not."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise StartError(self._said() or f"the service ended at once; see {self._log}")
            running = running_in(self._directory)
            if running is not None and running.pid == self._process.pid:
                with Client(running.url, timeout_s=2.0) as client:
                    if client.ready():
                        self.secret = running.secret
                        return running.url
            time.sleep(0.05)
        raise StartError(f"the service did not answer within {READY_S:.0f} s; see {self._log}")

    def stop(self) -> None:
        """End it and wait for that; may be called again."""
        if self._process.stdin is not None:
            # Attached: it first cancels what runs and waits for that, and a signal would cut this short.
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CANCEL_S)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def leave(self) -> None:
        """It goes on after this process: nobody waits for it."""
        self._process.returncode = 0

    def _said(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._said_before, os.SEEK_SET)
            said = log.read().decode(errors="replace").strip()
        return said.removeprefix("phoenix: ")
