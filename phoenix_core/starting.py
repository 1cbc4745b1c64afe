"""How an agent starts a worker's process."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from phoenix_core.advice import tell
from phoenix_core.wire import die_with_parent


def start_worker(
    command: Sequence[str], environment: Mapping[str, str], fds: Sequence[int], log: Path | None
) -> subprocess.Popen[bytes]:
    """The process, which dies with this one and is passed `fds`; its output goes to `log`, if there is one.

    Raises OSError where it cannot be started.
    """
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


def _opened(log: Path) -> IO[bytes] | None:
    """None where it cannot be opened (a full disk, a lost mount): no rank may go without a successor for that."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        tell(f"phoenix: {log}: {error.strerror}; what this worker prints comes here")
        return None
