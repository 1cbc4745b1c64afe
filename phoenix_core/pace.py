"""How long a step of this job takes, and from that how long a rank may keep the others waiting."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from statistics import median

from phoenix_core.protocol import Progress
from phoenix_core.settings import Detection

REMEMBERED_STEPS = 20


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

    def resume(self) -> None:
        """A recovery lies between the last boundary and the next: that time is not a step's."""
        self._last = None

    def reached(self, boundary: int, now: float) -> None:
        """Every rank has come to `boundary`."""
        if self._last is not None and boundary <= self._last[0]:
            return
        if self._last is not None:
            self._seconds.append((now - self._last[1]) / (boundary - self._last[0]))
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

    def patience_s(self, progress: Progress) -> float:
        """The same for a rank at `progress`: between two steps it may be saving or evaluating while the others wait."""
        limit = self.hang_limit_s()
        return limit if progress.phase else max(limit, self._detection.between_steps_s)
