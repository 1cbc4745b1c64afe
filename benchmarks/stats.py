"""The statistics of the published numbers: medians with ranges, and ratios of paired measurements. Pure.

Independent groups are compared by `chaos.compare.ranks`. Overhead is measured in pairs of neighbouring blocks, whose
drift those tests would count as noise; so its ratio is formed within each pair, and its interval over the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A sample in short. The values themselves are kept: a median cannot be compared later, a sample can."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def text(self, unit: float = 1.0, digits: int = 0) -> str:
        """Median (least-greatest), multiplied by `unit`; a dash for an empty sample."""
        if not self.values:
            return "-"
        low, high = min(self.values) * unit, max(self.values) * unit
        return f"{self.median * unit:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio of paired measurements with its 95 % interval."""

    value: float
    low: float
    high: float
    pairs: int


def paired_ratio(treated: Sequence[float], baseline: Sequence[float], *, seed: int = 0, draws: int = 10_000) -> Ratio:
    """Geometric mean of treated/baseline over pairs, with a percentile bootstrap interval over the pairs.

    The logarithm makes the result the inverse of the one with the arms exchanged. Raises ValueError for
    fewer than two pairs, of which no interval can be given.
    """
    logs = np.log(np.asarray(treated, dtype=float) / np.asarray(baseline, dtype=float))
    if len(logs) < 2:
        raise ValueError(f"an interval needs at least two pairs, there is {len(logs)}")
    drawn = np.random.default_rng(seed).choice(logs, size=(draws, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return Ratio(value=float(np.exp(logs.mean())), low=float(low), high=float(high), pairs=len(logs))
