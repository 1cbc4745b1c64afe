"""Rank statistics of small samples: the tests of scipy, and the estimates that belong to them. Pure.

A trial that did not recover is `inf`: it outranks every time that was measured. No function takes NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

# Above this many pairs the exact distribution of U costs more than it tells; the normal one is as good.
_MOST_PAIRS = 10_000
_RESAMPLES = 9_999


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % interval; the interval is missing where the sample is too small for one."""

    value: float
    low: float | None
    high: float | None


def mann_whitney(base: Sequence[float], head: Sequence[float]) -> float:
    """Two-sided p of "both come from one distribution": exact without ties, else by permutation (seeded).

    scipy's own choice would take the asymptotic p with ties, which is wrong where several trials did not recover.
    """
    from scipy.stats import PermutationMethod, mannwhitneyu

    together = [*base, *head]
    if len(set(together)) == 1:
        return 1.0
    method: Any = "exact"
    if len(set(together)) < len(together):
        method = PermutationMethod(n_resamples=_RESAMPLES, rng=np.random.default_rng(0))
    elif len(base) * len(head) > _MOST_PAIRS:
        method = "asymptotic"
    return min(1.0, float(mannwhitneyu(head, base, alternative="two-sided", method=method).pvalue))


def hodges_lehmann(base: Sequence[float], head: Sequence[float], *, confidence: float = 0.95) -> Ratio:
    """The median of all ratios head/base, with the interval of Moses, which inverts the test above.

    Raises ValueError for an empty side.
    """
    if not base or not head:
        raise ValueError("a ratio needs a value on each side")
    pairs = np.sort(_log_differences(base, head))
    value = float(np.exp(_middle(pairs)))
    below = _critical(len(base), len(head), 1 - confidence)
    if below == 0:
        return Ratio(value=value, low=None, high=None)
    low, high = np.exp(pairs[below - 1]), np.exp(pairs[len(pairs) - below])
    return Ratio(value=value, low=float(low), high=float(high))


def _log_differences(base: Sequence[float], head: Sequence[float]) -> Any:
    """log head_j - log base_i for every pair; two trials that both did not recover are as slow as each other."""
    logs_base, logs_head = np.log(np.asarray(base, float)), np.log(np.asarray(head, float))
    left, right = np.meshgrid(logs_base, logs_head)
    both = np.isinf(left) & np.isinf(right)
    with np.errstate(invalid="ignore"):
        return np.where(both, 0.0, right - left).ravel()


def _middle(ordered: Any) -> float:
    """The median of sorted values; between a number and an infinity lies the infinity."""
    half = len(ordered) // 2
    low, high = float(ordered[half if len(ordered) % 2 else half - 1]), float(ordered[half])
    if low == high:
        return low
    return 0.0 if math.isinf(low) and math.isinf(high) else (low + high) / 2


@lru_cache(maxsize=512)
def _critical(first: int, second: int, alpha: float) -> int:
    """The greatest c with P(U < c) <= alpha / 2: the interval leaves out c - 1 pairs on each end, 0: there is none."""
    pairs = first * second
    if pairs > _MOST_PAIRS:
        deviation = math.sqrt(pairs * (first + second + 1) / 12)
        return max(0, int(pairs / 2 + NormalDist().inv_cdf(alpha / 2) * deviation))
    below = np.cumsum(_null_distribution(first, second))
    return int(np.searchsorted(below, alpha / 2 * (1 + 1e-12), side="right"))


def _null_distribution(first: int, second: int) -> Any:
    """P(U = u) for u = 0..first*second without ties: Gaussian binomial coefficients, built up factor by factor."""
    size = first * second + 1
    counts = np.zeros(size)
    counts[0] = 1.0
    for step in range(1, first + 1):
        # times (1 - q^(second + step)), then divided by (1 - q^step)
        shift = second + step
        if shift < size:
            counts[shift:] -= counts[: size - shift].copy()
        for at in range(step, size):
            counts[at] += counts[at - step]
    return counts / math.comb(first + second, first)


def median_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of the median between two order statistics; None under 6 values, of which there is none."""
    count, alpha = len(values), 1 - confidence
    rank, tail = 0, 0.0
    while rank < count // 2:
        tail += math.comb(count, rank) / 2**count
        if tail > alpha / 2:
            break
        rank += 1
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[count - rank]


def boschloo(base: tuple[int, int], head: tuple[int, int]) -> float:
    """One-sided p of "the head succeeds no more seldom"; each side is (successes, trials)."""
    from scipy.stats import boschloo_exact

    table = [[base[0], head[0]], [base[1] - base[0], head[1] - head[0]]]
    if head[0] == head[1] or base[0] == 0:
        return 1.0
    return float(boschloo_exact(table, alternative="greater").pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p values adjusted for their number, in the order given (Holm's step-down)."""
    adjusted = [0.0] * len(values)
    greatest = 0.0
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(values) - place) * values[index]))
        adjusted[index] = greatest
    return adjusted


def log_deviation(*groups: Sequence[float]) -> float | None:
    """Pooled standard deviation of the logarithms within groups: the coefficient of variation, for small ones.

    None where no group has two finite values.
    """
    squares, degrees = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group if math.isfinite(value)]
        if len(logs) >= 2:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((value - mean) ** 2 for value in logs)
            degrees += len(logs) - 1
    return math.sqrt(squares / degrees) if degrees else None


def trials_needed(deviation: float, effect: float, *, least_ratio: float = 1.05, power: float = 0.8) -> int:
    """Trials per side that find a slow-down of `effect` with that power, if the logarithms deviate by `deviation`.

    Two things must happen: the test is significant (Mann-Whitney has 0.955 of the t test's power), and the estimated
    ratio is not under `least_ratio`. An effect of `least_ratio` itself passes the second in half of all cases
    however many trials there are, so for such small effects half the effect counts as the least ratio.
    """
    size = math.log1p(effect)
    margin = size - min(math.log(least_ratio), size / 2)
    normal = NormalDist()
    needed = min(size / (normal.inv_cdf(0.975) + normal.inv_cdf(power)), margin / normal.inv_cdf(power))
    return max(6, math.ceil(2 * (deviation / needed) ** 2 / 0.955))
