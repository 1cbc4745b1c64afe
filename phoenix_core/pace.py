"""How long a step of this job takes, and from that how long a rank may keep the others waiting."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from phoenix_core.protocol import Progress
from phoenix_core.settings import Detection

REMEMBERED_STEPS: Final = 20
NEW_STEPS: Final = 50
"""So many steps of a job, and of a worker that takes a rank over, are its first: by then it has most likely met each
way through the script (evaluation, a partial batch), which takes long once in a process (compilation, caches)."""
FIRST_STEPS: Final = 3
"""In them a worker may take as long as that many of the job's slowest first step: the others have compiled already."""
REMEMBERED_FOR: Final = 20
"""Times the steps in which a worker is new: for so many its loss lengthens the patience with the next one."""
MOST_DOUBLINGS: Final = 10


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


class Newcomers:
    """Workers that have taken a rank over, and so meet for the first time what the others have met before.

    After one that was lost as hung the next on its rank has twice the time, in twice as many steps, and so on: the
    alarm may have been false, and would be again. Forgotten once one has executed 20 times the steps in which it is
    new: false alarms that come seldom enough for that are few.
    """

    def __init__(self) -> None:
        self._joined: dict[str, tuple[int, int]] = {}
        """By worker: its rank, and the boundary from which it went on."""
        self._lost: Counter[int] = Counter()
        """By rank, the newcomers that were lost as hung."""

    def join(self, boundary: int, ranks: Mapping[str, int]) -> None:
        """The workers of `ranks`, with the rank of each, go on from `boundary`."""
        stay = {worker: there for worker, there in self._joined.items() if there[0] not in ranks.values()}
        self._joined = {**stay, **{worker: (rank, boundary) for worker, rank in ranks.items()}}

    def lost(self, worker: str) -> None:
        if worker in self._joined:
            self._lost[self._joined[worker][0]] += 1

    def reached(self, boundary: int) -> None:
        for worker, (rank, since) in list(self._joined.items()):
            if boundary - since >= REMEMBERED_FOR * NEW_STEPS * self._times(rank):
                del self._joined[worker], self._lost[rank]

    def patience(self, worker: str, boundary: int) -> int:
        """By what the time of a newcomer is to be multiplied; 0 for who is not, or no longer, new at `boundary`."""
        if worker not in self._joined:
            return 0
        rank, since = self._joined[worker]
        times = self._times(rank)
        return times if boundary - since < NEW_STEPS * times else 0

    def _times(self, rank: int) -> int:
        return 1 << min(self._lost[rank], MOST_DOUBLINGS)


class Pace:
    """The times between the boundaries of the slowest rank, in seconds of any monotonic clock."""

    def __init__(self, detection: Detection) -> None:
        self._detection = detection
        self._seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._last: tuple[int, float] | None = None
        self._slowest_first_s: float | None = None
        self._began_at: int | None = None
        self._newcomers = Newcomers()

    def resume(self, boundary: int, joined: Mapping[str, int]) -> None:
        """A recovery lies between the last boundary and the next: that time is not a step's.

        All go on from `boundary`; the workers in `joined`, with the rank of each, for the first time.
        """
        self._last = None
        self._began_at = boundary if self._began_at is None else self._began_at
        self._newcomers.join(boundary, joined)

    def lost(self, worker: str) -> None:
        """It has kept the others waiting for longer than its patience, and is replaced."""
        self._newcomers.lost(worker)

    def pause(self) -> None:
        """All wait for the network: what has passed since the last boundary is not a step's time."""
        self._last = None

    def reached(self, boundary: int, now: float) -> None:
        """Every rank has come to `boundary`."""
        if self._last is not None and boundary <= self._last[0]:
            return
        if self._last is not None:
            self._seconds.append((now - self._last[1]) / (boundary - self._last[0]))
            # Where that is None the job had begun before this was made.
            if self._began_at is not None and boundary - self._began_at <= NEW_STEPS:
                self._slowest_first_s = max(self._slowest_first_s or 0.0, self._seconds[-1])
        self._newcomers.reached(boundary)
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
        """The same for `worker`, at `progress`: between two steps it may be saving or evaluating while others wait.

        A newcomer has more, but never more than the longest of what any rank has, `first_step_s` (300 s) and three of
        the job's slowest first step: after that a real hang of it is found, however many were lost before.
        """
        limit = self.hang_limit_s()
        if times := self._newcomers.patience(worker, progress.boundary):
            any_first_s, slowest_s = self._detection.first_step_s, self._slowest_first_s
            own_s = max(limit, any_first_s if slowest_s is None else FIRST_STEPS * slowest_s)
            limit = max(own_s, min(times * own_s, any_first_s))
        return limit if progress.phase else max(limit, self._detection.between_steps_s)
