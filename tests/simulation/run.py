"""Jobs from seeds: one of them, or a range with what it covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from phoenix_core.errors import PhoenixError
from tests.simulation.cluster import Cluster
from tests.simulation.faults import plan_of
from tests.simulation.invariants import Violation


@dataclass(frozen=True)
class Result:
    """How a job ended. `violation` names the broken invariant, `what` says how; both empty where all held."""

    seed: int
    outcome: str
    reason: str
    generations: int
    faults: tuple[str, ...]
    violation: str = ""
    what: str = ""

    def __str__(self) -> str:
        if self.violation:
            return f"seed {self.seed} broke an invariant: {self.what} (replay: python -m tests.simulation {self.seed})"
        return f"seed {self.seed}: {self.outcome}, {self.reason}"


def simulate(seed: int, log: Callable[[str], None] | None = None) -> Result:
    cluster = Cluster(plan_of(seed), seed, log)
    outcome, reason, violation, what = "", "", "", ""
    try:
        end = cluster.run()
        outcome, reason = end.outcome, end.reason
    except Violation as broken:
        violation, what = broken.rule, str(broken)
    except (PhoenixError, AssertionError, ValueError, LookupError) as error:  # each would end a real coordinator
        violation, what = f"raised {type(error).__name__}", f"{type(error).__name__}: {error}"
    generations = cluster.coordinator.membership.generation
    return Result(seed, outcome, reason, generations, tuple(cluster.checks.faults), violation, what)


@dataclass
class Sweep:
    """What many jobs came to."""

    jobs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    generations: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.jobs += 1
        self.outcomes[result.outcome] += 1
        self.generations[result.generations] += 1
        self.faults.update(result.faults)
        if result.violation:
            self.violations.append(result)

    def merge(self, other: Sweep) -> None:
        self.jobs += other.jobs
        self.outcomes += other.outcomes
        self.generations += other.generations
        self.faults += other.faults
        self.violations += other.violations

    def __str__(self) -> str:
        generations = ", ".join(f"{count} with {number}" for number, count in sorted(self.generations.items()))
        return (
            f"{self.jobs} jobs: {dict(self.outcomes.most_common())}\n"
            f"generations: {generations}\n"
            f"{sum(self.faults.values())} faults struck: {dict(self.faults.most_common())}"
        )


def sweep(seeds: Iterable[int]) -> Sweep:
    total = Sweep()
    for seed in seeds:
        total.add(simulate(seed))
    return total
