"""How long a step of this job takes, and from that how long a rank may keep the others waiting."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from statistics import median
from typing import Final

from phoenix_core.protocol import Progress
from phoenix_core.settings import Detection

REMEMBERED_STEPS: Final = 20
FIRST_STEPS: Final = 3
"""A rank that has joined may take as long as that many first steps of the job: it compiles what the others have."""


class Boundaries:
    """How many ranks are at each boundary: of two or three boundaries the lowest is found without asking all ranks."""

    def __init__(self, boundaries: Iterable[int] = ()) -> None:
        self._ranks = Counter(boundaries)

    def moved(self, before: int, now: int) -> int:
        """One rank was at `before` and is at `now`; returns the lowest boundary of all."""
        self._ranks[now] += 1
        self._ranks[before] -= 1
        if not self._ranks[before]:
            del self._ranks[before]
        return min(self._ranks)


class Pace:
    """The times between the boundaries of the slowest rank, in seconds of any monotonic clock."""

    def __init__(self, detection: Detection) -> None:
        self._detection = detection
        self._seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._last: tuple[int, float] | None = None
        self._first_s: float | None = None
        self._joined: frozenset[str] = frozenset()
        self._resumed_at: int | None = None

    def resume(self, boundary: int, joined: Iterable[str]) -> None:
        """A recovery lies between the last boundary and the next: that time is not a step's.

        All go on from `boundary`; for the workers in `joined` the next step is the first.
        """
        self._last, self._resumed_at, self._joined = None, boundary, frozenset(joined)

    def pause(self) -> None:
        """All wait for the network: what has passed since the last boundary is not a step's time."""
        self._last = None

    def reached(self, boundary: int, now: float) -> None:
        """Every rank has come to `boundary`."""
        if self._last is not None and boundary <= self._last[0]:
            return
        if self._last is not None:
            self._seconds.append((now - self._last[1]) / (boundary - self._last[0]))
            if self._first_s is None and self._resumed_at is not None:  # else the job had begun before this was made
                self._first_s = self._seconds[-1]
        if self._resumed_at is not None and boundary > self._resumed_at:
            self._joined = frozenset()
        self._last = (boundary, now)

    @property
    def step_s(self) -> float | None:
        """The median of the last steps; None before there are two boundaries."""
        return median(self._seconds) if self._seconds else None

    def hang_limit_s(self) -> float:
        """How long a rank may keep the others waiting in the middle of a step."""
        if self.step_s is None:
            return self._detection.first_step_s
        return max(self._detection.hang_floor_s, self._detection.hang_factor * self.step_s)

    @property
    def longest_s(self) -> float:
        """How long all may wait for each other: longer than any rank may keep the others waiting."""
        return max(self.hang_limit_s(), self._detection.between_steps_s)

    def patience_s(self, worker: str, progress: Progress) -> float:
        """The same for `worker`, at `progress`: between two steps it may be saving or evaluating while others wait."""
        limit = self.hang_limit_s()
        if worker in self._joined:
            first_s = self._first_s
            limit = max(limit, self._detection.first_step_s if first_s is None else FIRST_STEPS * first_s)
        return limit if progress.phase else max(limit, self._detection.between_steps_s)
