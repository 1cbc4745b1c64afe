"""The probe: a worker of any runtime tells what it does, in the events of this project. Needs no torch.

Import it first, so that a worker is known from its first instant on.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from chaos.procfs import start_ticks
from phoenix_core.events import EventWriter

EVENTS, SETTINGS, NODE = "PEER_EVENTS", "PEER_SETTINGS", "PHOENIX_NODE"


class Probe:
    """One per process. `settings` are what the adapter chose for this script."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = json.loads(os.environ.get(SETTINGS, "{}"))
        node, pid = os.environ.get(NODE), os.getpid()
        worker = f"{node or 'worker'}.{pid}"
        path = Path(os.environ[EVENTS]) / f"{worker}.jsonl"
        self._writer = EventWriter(path, forgiving=True, worker=worker, node=node)
        self.say("worker_spawned", pid=pid, start_ticks=start_ticks(pid))

    def say(self, kind: str, **fields: object) -> None:
        self._writer.emit(kind, **fields)  # type: ignore[arg-type]

    def begin(self, step: int, rank: int | None) -> int:
        """A step begins; give what this returns to `commit`."""
        began = time.monotonic_ns()
        self._writer.emit("phase_entered", at=began, step=step, rank=rank, phase="forward")
        return began

    def commit(self, step: int, rank: int | None, began: int, **recorded: float) -> None:
        duration = time.monotonic_ns() - began
        self.say("step_committed", step=step, rank=rank, duration_ns=duration, **recorded)
