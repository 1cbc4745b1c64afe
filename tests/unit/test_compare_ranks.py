"""The estimates against brute force and scipy, and their edges: ties, trials that never recovered, tiny samples."""

from __future__ import annotations

import itertools
import math
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, rankdata

from chaos.compare.ranks import (
    boschloo,
    hodges_lehmann,
    holm,
    log_deviation,
    mann_whitney,
    median_interval,
    trials_needed,
)

TIMES = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


@given(TIMES, TIMES)
def test_the_ratio_is_the_median_of_all_ratios(base: list[float], head: list[float]) -> None:
    pairs = [math.log(after / before) for before, after in itertools.product(base, head)]
    assert math.log(hodges_lehmann(base, head).value) == pytest.approx(median(pairs), abs=1e-9)


@given(TIMES, TIMES)
def test_exchanging_the_sides_inverts_the_ratio(base: list[float], head: list[float]) -> None:
    there, back = hodges_lehmann(base, head), hodges_lehmann(head, base)
    assert there.value * back.value == pytest.approx(1.0)
    if there.low is not None and back.high is not None:
        assert there.low * back.high == pytest.approx(1.0)


@pytest.mark.parametrize(("base", "head"), [(4, 4), (5, 9), (10, 10), (20, 20), (30, 30)])
def test_the_interval_leaves_out_one_exactly_where_the_test_rejects(base: int, head: int) -> None:
    """Moses: a ratio r lies in the interval if and only if base * r and head are not told apart."""
    generator = np.random.default_rng(base * head)
    left, right = generator.lognormal(size=base), generator.lognormal(0.3, size=head)
    interval = hodges_lehmann(left.tolist(), right.tolist())
    assert interval.low is not None and interval.high is not None
    for ratio, inside in ((interval.low, True), (interval.high, True), (interval.low, False), (interval.high, False)):
        outward = 1e-7 * (1 if ratio == interval.high else -1)
        shifted = left * ratio * (1 + (-outward if inside else outward))
        p = mannwhitneyu(shifted, right, method="exact").pvalue
        assert bool(p > 0.05) is inside


def test_three_a_side_have_no_interval() -> None:
    assert hodges_lehmann([1, 2, 3], [2, 3, 4]).low is None


def test_an_empty_side_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="a value on each side"):
        hodges_lehmann([], [1.0])


def test_trials_that_never_recovered_rank_last() -> None:
    base = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    worse = [1.05, 1.15, 1.25, 1.35, 1.45, 1.55, 1.65, 1.75, math.inf, math.inf]
    assert mann_whitney(base, worse) == pytest.approx(0.7, abs=0.1)
    assert mann_whitney(base, [math.inf] * 10) < 0.001
    assert hodges_lehmann(base, [math.inf] * 10).value == math.inf
    assert hodges_lehmann([math.inf] * 3, [math.inf] * 3).value == 1.0


def test_ties_are_tested_by_every_permutation_and_the_same_each_time() -> None:
    base, head = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0], [1.0, 2.0, 2.0, 2.0, 3.0, 3.0]
    ranks = rankdata([*base, *head])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, 6)]
    seen = sum(ranks[:6])
    tails = sum(value <= seen + 1e-9 for value in sums), sum(value >= seen - 1e-9 for value in sums)
    assert mann_whitney(base, head) == pytest.approx(2 * min(tails) / len(sums))
    assert mann_whitney([1.0] * 6, [1.0] * 6) == 1.0
    many, more = [1.0, 2.0] * 10, [1.0, 2.0, 2.0, 2.0] * 5
    assert mann_whitney(many, more) == mann_whitney(many, more)


def test_the_median_interval_is_of_order_statistics() -> None:
    assert median_interval([5, 4, 3, 2, 1]) is None
    assert median_interval([6, 5, 4, 3, 2, 1]) == (1, 6)
    assert median_interval(list(range(1, 11))) == (2, 9)
    generator = np.random.default_rng(5)
    inside = 0
    for _ in range(500):
        interval = median_interval(generator.normal(size=15).tolist())
        assert interval is not None
        inside += interval[0] <= 0 <= interval[1]
    assert inside / 500 >= 0.94


def test_boschloo_sees_what_counts() -> None:
    assert boschloo((20, 20), (20, 20)) == 1.0
    assert boschloo((40, 40), (16, 20)) < 0.01
    assert boschloo((16, 20), (20, 20)) == 1.0
    assert boschloo((0, 20), (0, 20)) == 1.0


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_noise_and_the_trials_it_asks_for() -> None:
    assert log_deviation([1.0], [2.0]) is None
    assert log_deviation([1.0, math.e], [1.0, math.e, math.inf]) == pytest.approx(math.sqrt(0.5))
    assert trials_needed(0.0, 0.2) == 6
    needed = [trials_needed(0.15, effect) for effect in (0.05, 0.1, 0.2)]
    assert needed == sorted(needed, reverse=True)
    assert 11 <= needed[-1] <= 15
