"""The rule: when a group of times, or of successes, is worse than another. Pure.

A screen (two-sided exact Mann-Whitney at 5 %, and a Hodges-Lehmann ratio of at least 1.05) says what to look at again.
What it flags is measured afresh, and fails only if Holm's correction over the flagged leaves it significant. With 20
scenarios a night the screen alone raises a false alarm in a third of the nights, both together in one of a hundred; a
slow-down of 20 % is found twice out of three times at 10 trials and a coefficient of variation of 15 %
(`tests/unit/test_compare_rule.py` simulates it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Final

from chaos.compare.ranks import Ratio, boschloo, hodges_lehmann, log_deviation, mann_whitney, trials_needed

# The events of two processes cannot tell less from nothing: shorter times count as this.
RESOLUTION_S: Final = 0.001


class Outcome(StrEnum):
    REGRESSION = "regression"
    RELIABILITY = "reliability regression"
    IMPROVEMENT = "improvement"
    STABLE = "stable"
    INCONCLUSIVE = "inconclusive"
    INSUFFICIENT = "insufficient data"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The thresholds. `delta`: the least slow-down that counts; `margin`: what "stable" promises to be within."""

    alpha: float = 0.05
    delta: float = 0.05
    margin: float = 0.10
    least_trials: int = 6
    least_sessions: int = 10
    most_sessions: int = 30
    most_failed: float = 0.25
    reliability_alpha: float = 0.01
    least_for_reliability: int = 20


RULE: Final = Rule()


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What two groups say. `screened`: slower by the screen, which alone fails nothing. `needs`: values per side."""

    outcome: Outcome
    reason: str
    ratio: Ratio | None = None
    p: float | None = None
    screened: bool = False
    needs: int | None = None


def judge(base: Sequence[float], head: Sequence[float], rule: Rule = RULE) -> Judgement:
    """Times of single trials, `inf` for one that did not recover. What is flagged is INCONCLUSIVE until confirmed."""
    least = min(len(base), len(head))
    if least < rule.least_trials:
        needs = rule.least_trials
        reason = f"{least} trials on a side: the test needs at least {needs} on each"
        return Judgement(outcome=Outcome.INSUFFICIENT, reason=reason, needs=needs)
    base, head = at_resolution(base), at_resolution(head)
    p, ratio = mann_whitney(base, head), hodges_lehmann(base, head)
    for name, side in (("base", base), ("head", head)):
        lost = sum(math.isinf(value) for value in side)
        if lost > rule.most_failed * len(side):
            reason = f"{lost} of {len(side)} trials of {name} did not recover: their times say little"
            return Judgement(outcome=Outcome.INCONCLUSIVE, reason=reason, p=p)
    needs = trials_needed(log_deviation(base, head) or 0.0, rule.margin, least_ratio=1 + rule.delta)
    return _classified(ratio, p, rule, needs, f"{len(head)} trials")


def judge_sessions(base: Sequence[float], head: Sequence[float], rule: Rule = RULE) -> Judgement:
    """Medians of sessions that measured one side each: is the head outside of what base does from one to the next?

    A prediction interval of Student's t: trials of one session share a level, so they are no replications.
    """
    if len(base) < rule.least_sessions or not head:
        reason = (
            f"the two sides were not measured in the same sessions, and base was measured in {len(base)}: history "
            f"needs {rule.least_sessions}, or measure both now with --ab"
        )
        return Judgement(outcome=Outcome.INSUFFICIENT, reason=reason, needs=rule.least_sessions)
    base, head = at_resolution(base), at_resolution(head)
    if any(math.isinf(value) for value in [*base, *head]):
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason="in some session most trials did not recover")
    from scipy.stats import t

    logs = [math.log(value) for value in base]
    shift, spread = fmean(math.log(value) for value in head) - fmean(logs), stdev(logs)
    error = spread * math.sqrt(1 / len(head) + 1 / len(base))
    if error == 0.0:
        p, width = (1.0 if shift == 0.0 else 0.0), 0.0
    else:
        p = float(2 * t.sf(abs(shift) / error, len(base) - 1))
        width = float(t.ppf(0.975, len(base) - 1)) * error
    ratio = Ratio(value=math.exp(shift), low=math.exp(shift - width), high=math.exp(shift + width))
    needs = trials_needed(spread, rule.margin, least_ratio=1 + rule.delta)
    return _classified(ratio, p, rule, needs, f"{len(head)} sessions against {len(base)}")


def _classified(ratio: Ratio, p: float, rule: Rule, needs: int, measured: str) -> Judgement:
    clear = p < rule.alpha
    if clear and ratio.value >= 1 + rule.delta:
        outcome, reason = Outcome.INCONCLUSIVE, f"{percent(ratio.value)} slower in {measured}, not confirmed"
        return Judgement(outcome=outcome, reason=reason, ratio=ratio, p=p, screened=True)
    if clear and ratio.value <= 1 / (1 + rule.delta):
        reason = f"{percent(ratio.value)} faster in {measured}"
        return Judgement(outcome=Outcome.IMPROVEMENT, reason=reason, ratio=ratio, p=p)
    within = ratio.low is not None and ratio.high is not None
    if within and ratio.low > 1 / (1 + rule.margin) and ratio.high < 1 + rule.margin:  # type: ignore[operator]
        reason = f"within {rule.margin:.0%} with {measured}"
        return Judgement(outcome=Outcome.STABLE, reason=reason, ratio=ratio, p=p)
    reason = f"{measured} do not tell: a change of {rule.margin:.0%} needs {needs} on each side"
    return Judgement(outcome=Outcome.INCONCLUSIVE, reason=reason, ratio=ratio, p=p, needs=needs)


def judge_success(base: tuple[int, int], head: tuple[int, int], rule: Rule = RULE) -> Judgement:
    """Each side is (successes, trials that could be judged)."""
    if not base[1] or not head[1]:
        return Judgement(outcome=Outcome.INSUFFICIENT, reason="no trial of one side could be judged", needs=1)
    p = boschloo(base, head)
    failed = head[1] - head[0]
    said = f"{failed} of {head[1]} trials failed, {base[1] - base[0]} of {base[1]} of base"
    if head[0] == 0 and base[0] > 0:
        return Judgement(outcome=Outcome.RELIABILITY, reason=f"no trial succeeded; {said}", p=p)
    if failed * base[1] <= (base[1] - base[0]) * head[1]:
        return Judgement(outcome=Outcome.STABLE, reason=said, p=p)
    if base[1] < rule.least_for_reliability:
        needs = rule.least_for_reliability
        reason = f"{said}: base needs {needs} trials to say that this is worse"
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason=reason, p=p, needs=needs)
    if p < rule.reliability_alpha:
        return Judgement(outcome=Outcome.RELIABILITY, reason=said, p=p)
    return Judgement(outcome=Outcome.INCONCLUSIVE, reason=f"{said}: that may be chance", p=p)


def confirmed(judgement: Judgement, p_adjusted: float, rule: Rule = RULE) -> bool:
    """Whether fresh trials say the same as the screen; `p_adjusted` by Holm over everything that was flagged."""
    return p_adjusted < rule.alpha and judgement.ratio is not None and judgement.ratio.value >= 1 + rule.delta


def at_resolution(values: Sequence[float]) -> list[float]:
    return [max(value, RESOLUTION_S) for value in values]


def percent(ratio: float) -> str:
    """`1.2` is 20 %, and so is its inverse."""
    return "without end" if math.isinf(ratio) or ratio == 0 else f"{abs(max(ratio, 1 / ratio) - 1):.0%}"
