"""Which processes lasting faults hold, and by what means: of two by the same means, the end of one would undo the
other, or leave what the other began."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaos.errors import TargetGone
from chaos.roster import WorkerInfo

SIGNALS: Final = "signals"
LIMITS: Final = "limits"

_held: Final[dict[tuple[int, int, str], str]] = {}
"""The fault, by pid and start time of the process and the means: the injectors of all kinds share them."""


class Claim:
    """What one fault holds."""

    def __init__(self, fault: str, workers: Iterable[WorkerInfo]) -> None:
        self._fault = fault
        self._workers = tuple(workers)
        self._keys: list[tuple[int, int, str]] = []

    def by(self, means: str) -> Claim:
        """Raises TargetGone, and holds nothing any more, where another fault does so already."""
        keys = {(worker.pid, worker.start_ticks, means): worker.worker for worker in self._workers}
        for key, worker in keys.items():
            if (other := _held.get(key)) is not None:
                self.release()
                raise TargetGone(f"{other} holds {worker} by {means} already: two at once would undo each other")
        _held.update(dict.fromkeys(keys, self._fault))
        self._keys += keys
        return self

    def release(self) -> None:
        """May be called twice."""
        while self._keys:
            _held.pop(self._keys.pop(), None)
