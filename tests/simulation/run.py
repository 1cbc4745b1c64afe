"""One simulated job from a seed."""

from __future__ import annotations

from dataclasses import dataclass

from phoenix_core.errors import PhoenixError
from tests.simulation.cluster import Cluster
from tests.simulation.faults import plan_of
from tests.simulation.invariants import Violation


@dataclass(frozen=True)
class Result:
    seed: int
    outcome: str
    reason: str
    generations: int
    faults: int
    events: int
    violation: str = ""
    what: str = ""


def simulate(seed: int) -> Result:
    cluster = Cluster(plan_of(seed), seed)
    outcome, reason, violation, what = "", "", "", ""
    try:
        end = cluster.run()
        outcome, reason = end.outcome, end.reason
    except Violation as broken:
        violation, what = broken.rule, str(broken)
    except (PhoenixError, AssertionError, LookupError, TypeError, AttributeError) as error:
        violation, what = f"raised {type(error).__name__}", str(error)
    membership = cluster.coordinator.membership
    faults = cluster.checks.faults
    return Result(seed, outcome, reason, membership.generation, faults, cluster.clock.handled, violation, what)
