"""How an agent starts a worker: the process, the socket to it, and the means to see it end."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from phoenix_core.advice import tell
from phoenix_core.tripwire import Tripwire
from phoenix_core.wire import LINE_LIMIT, die_with_parent


class CannotStart(Exception):
    """No program, no descriptor, no memory; the message says which. Nothing of the attempt is left."""


@dataclass(frozen=True, kw_only=True)
class Started:
    popen: subprocess.Popen[bytes]
    pidfd: int
    wire: Tripwire
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def start_worker(
    command: Sequence[str], environment: Callable[[int, int], Mapping[str, str]], log: Path | None
) -> Started:
    """The process, which dies with this one; its output goes to `log`, if there is one.

    `environment` is given the descriptors of its socket and of its tripwire. Raises CannotStart.
    """
    with ExitStack() as undo:
        try:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                wire = Tripwire.create()
                undo.callback(wire.close)
                popen = _run(command, environment(theirs.fileno(), wire.fd), (theirs.fileno(), wire.fd), log)
            undo.callback(_end, popen)
            pidfd = os.pidfd_open(popen.pid)
            undo.callback(os.close, pidfd)
            reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(f"it cannot be started: {error}") from error
        undo.pop_all()
    return Started(popen=popen, pidfd=pidfd, wire=wire, reader=reader, writer=writer)


def _run(
    command: Sequence[str], environment: Mapping[str, str], fds: Sequence[int], log: Path | None
) -> subprocess.Popen[bytes]:
    output = _opened(log) if log is not None else None
    try:
        return subprocess.Popen(
            command,
            env=environment,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            preexec_fn=die_with_parent(),
        )
    finally:
        if output is not None:
            output.close()


def _end(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    popen.wait()


def _opened(log: Path) -> IO[bytes] | None:
    """None where it cannot be opened (a full disk, a lost mount): no rank may go without a successor for that."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        tell(f"phoenix: {log}: {error.strerror}; what this worker prints comes here")
        return None
