"""In which order two codes take turns, how many trials that takes, and which commit to try next. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaos.compare.ranks import log_deviation, trials_needed
from chaos.compare.rule import RULE, Rule

BASE, HEAD = "base", "head"
# The least that can be tested. These trials are part of the screen: only their noise decides how many more are made.
PILOT: Final = 6


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure: the slow-down to find, the most trials a side to look for it, and those that confirm it."""

    effect: float = 0.20
    most: int = 20
    confirming: int = 20


def order(trials: int, seed: int) -> list[str]:
    """`trials` of each side in blocks of four, ABBA or BAAB by lot: a drift of the machine hits both sides alike."""
    draw = random.Random(seed)
    turns: list[str] = []
    while len(turns) < 2 * trials:
        first, second = (BASE, HEAD) if draw.random() < 0.5 else (HEAD, BASE)
        turns += [first, second, second, first]
    return turns[: 2 * trials]


def screen_size(base: Sequence[float], head: Sequence[float], effort: Effort, rule: Rule = RULE) -> int:
    """Trials a side for the screen, given the times of the pilot: by their noise, never by their difference."""
    noise = log_deviation(base, head)
    if noise is None:
        return PILOT
    needed = trials_needed(noise, effort.effect, least_ratio=1 + rule.delta)
    return max(PILOT, min(effort.most, needed + needed % 2))


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """Commits, the oldest first; before the first lies the good one, and the last is bad.

    `told` says of a commit whether it is bad, None where that could not be found out.
    """

    commits: tuple[str, ...]
    told: Mapping[str, bool | None] = field(default_factory=dict)

    @property
    def suspects(self) -> tuple[str, ...]:
        """From the first that may be the culprit to the first that is known to be bad."""
        known_bad = [i for i, commit in enumerate(self.commits) if self.told.get(commit) is True]
        last = min(known_bad, default=len(self.commits) - 1)
        good = [i for i, commit in enumerate(self.commits[:last]) if self.told.get(commit) is False]
        return self.commits[max(good, default=-1) + 1 : last + 1]

    def next(self) -> str | None:
        """The commit to try, nearest to the middle; None where nothing is left to learn."""
        untold = [(place, commit) for place, commit in enumerate(self.suspects[:-1]) if commit not in self.told]
        middle = (len(self.suspects) - 2) / 2
        return min(untold, key=lambda entry: abs(entry[0] - middle))[1] if untold else None

    def tell(self, commit: str, bad: bool | None) -> Bisection:
        return replace(self, told={**self.told, commit: bad})

    @property
    def steps_left(self) -> int:
        """At most, if none has to be skipped."""
        return (len(self.suspects) - 1).bit_length()
