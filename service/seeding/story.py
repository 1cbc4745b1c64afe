"""What happened in a month that never was: nights, commits, regressions, failures, another machine. Pure.

The same seed, last night and number of nights tell the same story to the last digit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from chaos.reading import Phase
from chaos.scenario import Scenario

SCENARIOS: Final = ("kill-one", "kill-in-backward", "kill-in-optimizer", "stop-one")
TRIALS: Final = 6
NIGHTS: Final = 30

# Seconds of each phase, of a killed and of a frozen rank.
KILL: Final[Mapping[Phase, float]] = {
    Phase.DETECT: 0.008, Phase.QUIESCE: 0.024, Phase.REPLACE: 0.046, Phase.RECONSTRUCT: 0.028, Phase.RESTORE: 0.064,
    Phase.RECOMPUTE: 0.310,
}  # fmt: skip
STOP: Final = {**KILL, Phase.DETECT: 0.236, Phase.QUIESCE: 0.007}
STEP_S: Final = 0.29

BETWEEN_TRIALS, BETWEEN_NIGHTS = 0.06, 0.015
"""Coefficients of variation of a recovery's time."""

# Told in nights from the first of thirty; a shorter history has the last of them.
SLOW_RESTORE: Final = range(11, 18)
MISSING_NIGHT: Final = 8
WRONG_TWIN: Final = (14, "kill-in-backward", 3)
TOO_LATE: Final = (17, "kill-in-backward", 1)
OTHER_MACHINE_FROM: Final = 20
SLOW_DETECTION_FROM: Final = 25
# In the morning after that night both codes are measured again in turns, as `phoenix compare --ab` does.
AGAIN: Final = ("kill-one", "stop-one")
AGAIN_TRIALS: Final = 14
AGAIN_AFTER: Final = timedelta(hours=7)
NOT_RECOVERED: Final = (29, "kill-in-optimizer", 2)

MACHINES: Final[Sequence[Mapping[str, object]]] = (
    {"cpu": "Example 7000, 8 cores", "cores": 8, "memory_gib": 64, "system": "Linux"},
    {"cpu": "Example 9000, 8 cores", "cores": 8, "memory_gib": 128, "system": "Linux"},
)
MACHINE_SPEED: Final = (1.0, 0.84)


class Outcome(StrEnum):
    """How a made-up trial ends."""

    PASSED = "passed"
    WRONG_TWIN = "a loss differs from the undisturbed run's"
    NOT_RECOVERED = "the communicators are never ready again"
    TOO_LATE = "the fault came too late"


@dataclass(frozen=True, kw_only=True)
class SeededTrial:
    """One trial of the story. `phases` are seconds; `draw` seeds what else is random in it."""

    scenario: Scenario
    number: int
    started: datetime
    outcome: Outcome
    phases: Mapping[Phase, float]
    step_s: float
    draw: int


@dataclass(frozen=True, kw_only=True)
class Night:
    """The trials of one night: one code, one boot of one machine."""

    index: int
    suite: str
    started: datetime
    commit: str
    machine: Mapping[str, object]
    host: str
    boot: str
    trials: Sequence[SeededTrial]


def nights(scenarios: Mapping[str, Scenario], *, seed: int, last: datetime, count: int = NIGHTS) -> Iterator[Night]:
    """The newest `count` of thirty nights; `last` is when the newest began. `scenarios` holds all of SCENARIOS."""
    for index in range(NIGHTS):
        started = last - timedelta(days=NIGHTS - 1 - index)
        drawn = random.Random(f"{seed} night {index}")
        if index >= NIGHTS - count and index != MISSING_NIGHT:
            night = _night(index, started, scenarios, drawn, seed)
            yield night
            if index == SLOW_DETECTION_FROM:
                yield from _again(night, scenarios, seed)


def _night(index: int, started: datetime, scenarios: Mapping[str, Scenario], drawn: random.Random, seed: int) -> Night:
    which = int(index >= OTHER_MACHINE_FROM)
    level = MACHINE_SPEED[which] * _around(drawn, BETWEEN_NIGHTS)
    trials: list[SeededTrial] = []
    at = started
    for number in range(1, TRIALS + 1):  # in turns, so that a drift of the machine hits all alike
        for name in SCENARIOS:
            scenario = scenarios[name]
            trial = _trial(index, scenario, number, at, level, random.Random(f"{seed} {index} {name} {number}"))
            trials.append(trial)
            at += timedelta(seconds=20 + 2.2 * scenario.steps * trial.step_s)
    return Night(
        index=index,
        suite="nightly",
        started=started,
        commit=_commit(index, seed),
        machine=MACHINES[which],
        host=f"example-{which + 1}",
        boot=_boot(random.Random(f"{seed} boot {which} {index // 9}")),
        trials=trials,
    )


def _again(night: Night, scenarios: Mapping[str, Scenario], seed: int) -> Iterator[Night]:
    """This night's code and the one before, in the same session: what was slow can be told from a slow day."""
    level = MACHINE_SPEED[MACHINES.index(night.machine)]
    begun = night.started + AGAIN_AFTER
    for arm, index in enumerate((night.index - 1, night.index)):
        trials = [
            _trial(
                index,
                scenarios[name],
                100 + number,
                begun + timedelta(minutes=2 * number + arm),
                level,
                random.Random(f"{seed} again {index} {name} {number}"),
            )
            for number in range(AGAIN_TRIALS)
            for name in AGAIN
        ]
        yield replace(night, suite="compare", commit=_commit(index, seed), trials=trials)


def _trial(
    night: int, scenario: Scenario, number: int, at: datetime, level: float, drawn: random.Random
) -> SeededTrial:
    usual = STOP if scenario.name.startswith("stop") else KILL
    phases = {
        phase: length * _slower(night, scenario.name, phase) * level * _around(drawn, BETWEEN_TRIALS)
        for phase, length in usual.items()
    }
    return SeededTrial(
        scenario=replace(scenario, seed=number),
        number=number,
        started=at,
        outcome=_outcome((night, scenario.name, number)),
        phases=phases,
        step_s=STEP_S * level,
        draw=drawn.getrandbits(32),
    )


def _outcome(which: tuple[int, str, int]) -> Outcome:
    told = {WRONG_TWIN: Outcome.WRONG_TWIN, NOT_RECOVERED: Outcome.NOT_RECOVERED, TOO_LATE: Outcome.TOO_LATE}
    return told.get(which, Outcome.PASSED)


def _slower(night: int, scenario: str, phase: Phase) -> float:
    """The two regressions of the story: one that was fixed, one that is open."""
    if phase is Phase.RESTORE and night in SLOW_RESTORE:
        return 2.6
    if phase is Phase.DETECT and scenario.startswith("stop") and night >= SLOW_DETECTION_FROM:
        return 1.75
    return 1.0


def _around(drawn: random.Random, spread: float) -> float:
    return drawn.lognormvariate(0.0, spread)


def _commit(night: int, seed: int) -> str:
    return _hex(random.Random(f"{seed} commit {night}"), 40)


def _hex(drawn: random.Random, digits: int) -> str:
    return f"{drawn.getrandbits(4 * digits):0{digits}x}"


def _boot(drawn: random.Random) -> str:
    return "-".join(_hex(drawn, digits) for digits in (8, 4, 4, 4, 12))
