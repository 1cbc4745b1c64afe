"""Ranks that are slow but alive: the others spend much of their time waiting for one of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from phoenix_core.detection import Seen, waits_for
from phoenix_core.pace import Pace
from phoenix_core.protocol import Record

SHARE: Final = 0.3
"""Of the time, that all others wait for the same rank: without a straggler each rank is the last one now and then."""
WINDOW_STEPS: Final = 20
WINDOW_S: Final = 5.0
"""A window lasts for both."""
HEARTBEATS_A_STEP: Final = 3
"""Watermarks are a heartbeat old: of steps shorter than this many of them they tell nothing."""


class Stragglers:
    """Looks at watermarks again and again; a rank is told of once, and again only after it has kept up for a window."""

    def __init__(self, pace: Pace, heartbeat_s: float) -> None:
        self._pace = pace
        self._shortest_step_s = HEARTBEATS_A_STEP * heartbeat_s
        self._began: float | None = None
        self._looked = 0.0
        self._awaited_s: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self, seen: Seen, ranks: Sequence[str], now: float) -> list[Record]:
        """What the watermarks of `ranks` say at `now`: a record where a window ends in which the same rank was late."""
        step_s = self._pace.step_s
        if step_s is None or step_s < self._shortest_step_s:
            return []
        if self._began is None:
            self._began = self._looked = now
        edges = waits_for({worker: progress for worker, (progress, _) in seen.items()}, ranks)
        late = [worker for worker, others in edges.items() if not others and not seen[worker][0].broken]
        if len(late) == 1:
            self._awaited_s[late[0]] = self._awaited_s.get(late[0], 0.0) + now - self._looked
        self._looked = now
        if now - self._began < max(WINDOW_S, WINDOW_STEPS * step_s):
            return []
        return self._end_of_window(ranks, now - self._began)

    def restart(self) -> None:
        """A recovery: what was seen before it counts no longer."""
        self._began = None
        self._awaited_s.clear()

    def _end_of_window(self, ranks: Sequence[str], window_s: float) -> list[Record]:
        slow = {worker: seconds for worker, seconds in self._awaited_s.items() if seconds > SHARE * window_s}
        new = sorted(set(slow) - self._told)
        self._told = set(slow)
        self.restart()
        return [
            Record(
                kind="straggler_suspected",
                fields={"worker": w, "rank": ranks.index(w), "waiting_s": slow[w], "of_s": window_s},
            )
            for w in new
        ]
