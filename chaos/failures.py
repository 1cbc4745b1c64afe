"""Why a job failed, in words a user can act on: the reason it gave, and the last lines of the log that tells more."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.record import PartDirectory
from phoenix_core.events import Event

LAUNCHER_LOG: Final = "launcher.log"
QUOTED_LINES: Final = 15
_TAIL_BYTES: Final = 16384


def explain(directory: PartDirectory, events: Sequence[Event], code: int | None) -> str:
    """One paragraph and, below it, what the log of the culprit (or of the launcher) says last."""
    if code is None:
        return "the process that keeps the job was killed; the job was ended with it"
    parts = [f"the job failed ({_how(code)})"]
    finished = next((event for event in events if event.kind == "job_finished"), None)
    if finished is not None and finished.data.get("reason"):
        parts.append(str(finished.data["reason"]))
    log = _telling_log(directory, events)
    lines = last_lines(log)
    text = ": ".join(parts)
    return f"{text}\nlast lines of {log.name}:\n{lines}" if lines else text


def last_lines(path: Path, count: int = QUOTED_LINES) -> str:
    """The last lines of a text file; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            block = file.read()
    except OSError:
        return ""
    return "\n".join(block.decode(errors="replace").rstrip().splitlines()[-count:])


def _telling_log(directory: PartDirectory, events: Sequence[Event]) -> Path:
    """The log of the first worker that failed by itself, i.e. was not hit by a fault of ours."""
    hit = {event.worker for event in events if event.kind == "fault_injected"}
    suspects = [event.worker for event in events if event.kind in ("script_failed", "device_failed")]
    suspects += [event.worker for event in events if event.kind == "worker_exited" and event.data.get("code") != 0]
    for worker in suspects:
        path = directory.logs / f"{worker}.log"
        if worker is not None and worker not in hit and path.exists() and path.stat().st_size > 0:
            return path
    return directory.logs / LAUNCHER_LOG


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
