"""Where a series of medians jumped and stayed: an adapter around ruptures. Pure.

A search for change points takes any single bad night among the newest three for a change. So isolated spikes are
smoothed first, a segment has at least three nights, and the medians beside a change must differ by 5 %. A step of 20 %
is then found from the third night on, and a single night of twice the time is not taken for one. (A running median over
all points would do the opposite: neighbours become alike, and noise looks like steps.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

SHORTEST: Final = 3
LEAST_JUMP: Final = 0.05
# The search compares every pair of points: half a second for this many.
MOST_POINTS: Final = 200
# Where most nights are equal to the millisecond, the noise is taken to be this, not nothing.
_LEAST_NOISE: Final = 0.005
_SPIKE: Final = 3.0


def change_points(values: Sequence[float]) -> list[int]:
    """Indices at which a new level begins, of positive finite values in order. Raises ImportError without ruptures."""
    skipped = max(0, len(values) - MOST_POINTS)
    return [index + skipped for index in _search(tuple(values[skipped:]))]


@lru_cache(maxsize=1024)
def _search(values: tuple[float, ...]) -> tuple[int, ...]:
    """Remembered, because a history is looked at more often than it grows."""
    logs = [math.log(value) for value in values]
    if len(logs) < 2 * SHORTEST:
        return ()
    noise = _noise(logs)
    smooth = [level for level, _ in without_spikes(logs, noise)]
    import ruptures

    signal = np.asarray(smooth, float).reshape(-1, 1) / noise
    search = ruptures.Pelt(model="l1", min_size=SHORTEST, jump=1).fit(signal)
    found = [int(index) for index in search.predict(pen=2 * math.log(len(logs)))][:-1]
    return tuple(_large(logs, found))


def spikes(values: Sequence[float]) -> list[bool]:
    """Which single values stand out from neighbours that agree with each other."""
    logs = [math.log(value) for value in values]
    return [spike for _, spike in without_spikes(logs, _noise(logs))] if len(logs) >= SHORTEST else [False] * len(logs)


def without_spikes(logs: Sequence[float], noise: float) -> list[tuple[float, bool]]:
    """Each value, or the median of its neighbours where it alone stands out; and whether it does.

    At the newest end there are no neighbours behind: the last value may be the first of a new level and stays.
    """
    found = []
    for index, value in enumerate(logs):
        before, after = logs[max(0, index - 2) : index], logs[index + 1 : index + 3]
        around = [*before, *after]
        level = median(around) if around else value
        agree = bool(before and after) and abs(median(before) - median(after)) <= _SPIKE * noise
        spike = agree and abs(value - level) > _SPIKE * noise
        found.append((level if spike else value, spike))
    return found


def _noise(logs: Sequence[float]) -> float:
    """From differences of neighbours, which a step changes in one place only."""
    steps = np.diff(np.asarray(logs, float))
    if not len(steps):
        return _LEAST_NOISE
    spread = float(np.median(np.abs(steps - np.median(steps))))
    return max(_LEAST_NOISE, spread * 1.4826 / math.sqrt(2))


def _large(logs: Sequence[float], found: Sequence[int]) -> list[int]:
    """Without the smallest jump, again and again, until all that are left are large enough."""
    kept = list(found)
    while kept:
        edges = [0, *kept, len(logs)]
        levels = [median(logs[first:last]) for first, last in pairwise(edges)]
        jumps = [abs(after - before) for before, after in pairwise(levels)]
        smallest = min(range(len(jumps)), key=jumps.__getitem__)
        if jumps[smallest] >= math.log1p(LEAST_JUMP):
            break
        del kept[smallest]
    return kept
