"""The production membership in thousands of simulated jobs, and the proof that planted bugs do not get through."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.faults import IN_A_RECOVERY, KINDS, POINTS
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import Result, Sweep, simulate, sweep

SEEDS = 10_000
SOAK_SEEDS, CHUNK = 1_000_000, 5_000
CAUGHT_WITHIN = 3_000
"""Seeds within which every planted bug must be caught. The same seeds are clean without it."""


def swept(seeds: int) -> Sweep:
    """All of them, on both cores."""
    chunks = [range(first, first + CHUNK) for first in range(0, seeds, CHUNK)]
    total = Sweep()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(sweep, chunks):
            total.merge(part)
    return total


def report(total: Sweep) -> str:
    return "\n".join(map(str, total.violations[:5]))


@pytest.mark.timeout(300)
def test_every_invariant_holds() -> None:
    total = swept(SEEDS)
    print(total)
    assert not total.violations, report(total)
    # The faults did strike: every kind, and every point of the protocol.
    struck = {fault.split(" at ")[0] for fault in total.faults}
    reached = {fault.split(" at ")[1] for fault in total.faults if " at " in fault}
    assert struck >= set(KINDS) and reached >= {*POINTS, *IN_A_RECOVERY}
    # And the jobs were worth it: many went through recoveries that failed themselves, most came to their last step.
    assert total.outcomes["completed"] > SEEDS / 2
    assert sum(count for generations, count in total.generations.items() if generations > 2) > SEEDS / 10


@pytest.mark.soak
@pytest.mark.timeout(3400)
def test_every_invariant_holds_in_a_million_jobs() -> None:
    total = swept(SOAK_SEEDS)
    print(total)
    assert not total.violations, report(total)


def test_a_seed_is_one_story() -> None:
    told: list[list[str]] = [[], []]
    results = [simulate(42, story.append) for story in told]
    assert results[0] == results[1] and told[0] == told[1] and told[0]


def caught(mutation: Mutation) -> Result | None:
    with mutation.applied():
        return next((r for seed in range(CAUGHT_WITHIN) if (r := simulate(seed)).violation), None)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_planted_bug_is_caught() -> None:
    """One rule of the protocol after the other is taken out; the table says what noticed that, and how soon."""
    found = {mutation: caught(mutation) for mutation in MUTATIONS}
    print(f"\n{'rule':68} {'mutation':78} {'broken invariant':52} seeds")
    for mutation, result in found.items():
        broken, seeds = (result.violation, str(result.seed + 1)) if result else ("-", "none")
        print(f"{mutation.rule:68} {mutation.mutation:78} {broken:52} {seeds:>5}")
    assert len(MUTATIONS) >= 12
    assert [mutation.rule for mutation, result in found.items() if result is None] == []
