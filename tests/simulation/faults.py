"""From a seed to the shape of a job and to what goes wrong in it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from phoenix_core.roster import Job
from phoenix_core.settings import Detection

DETECTION: Final = Detection(silent_s=1.0, hang_floor_s=1.0, first_step_s=30.0)

POINTS: Final = (
    "start", "parked", "build", "forward", "backward", "gradient_sync", "optimizer", "commit", "quiesce", "offered",
    "planned", "fetched", "restored", "resumed", "finished", "epilogue",
)  # fmt: skip
"""Places in a worker's side of the protocol; see Worker._point."""
IN_A_RECOVERY: Final = ("build", "quiesce", "offered", "planned", "fetched", "restored", "resumed")

KINDS: Final = ("kill",) * 8 + (
    "hang", "hang", "stop", "stop", "silent", "pause", "pause", "agent", "agent", "partition", "partition", "peer_link",
)  # fmt: skip


@dataclass
class Fault:
    """`point` empty: at a time; else at the `nth` time that any worker comes to that point."""

    kind: str
    victim: str
    at: float = 0.0
    point: str = ""
    nth: int = 1
    seen: int = 0


@dataclass(frozen=True)
class Mistake:
    """The script of `rank` raises at `boundary` (-1: whenever it comes there), `times` times in all."""

    rank: int
    where: str
    boundary: int
    times: int


@dataclass
class Plan:
    job: Job
    steps: int
    buckets: int
    delay_s: float
    deaf_hangs: bool
    faults: list[Fault] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)


def plan_of(seed: int) -> Plan:
    rng = random.Random(seed)
    size = rng.choice((1, 2, 2, 3, 3, 3, 4, 4))
    per_node = rng.choice((1, 1, 1, 2))
    rank_nodes = tuple(f"n{rank // per_node}" for rank in range(size))
    spares = rng.choice((0, 1, 1, 1, 2, 2, 3))
    apart = rng.random() < 0.7
    spare_nodes = tuple(f"s{spare}" if apart else rng.choice(rank_nodes) for spare in range(spares))
    job = Job(
        rank_nodes=rank_nodes,
        spare_nodes=spare_nodes,
        max_restarts=rng.choice((1, 3, 3, 3)),
        detection=DETECTION,
    )
    plan = Plan(
        job=job,
        steps=rng.choice((2, 3, 4)),
        buckets=rng.choice((1, 2, 2)),
        delay_s=rng.choice((0.0005, 0.003, 0.02)),
        deaf_hangs=rng.random() < 0.6,
    )
    _add_faults(plan, rng)
    return plan


def _add_faults(plan: Plan, rng: random.Random) -> None:
    together = 1.1 + rng.random()
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        kind = rng.choice(KINDS)
        victim = rng.choice(("rank", "rank", "rank", "spare", "any"))
        roll = rng.random()
        if roll < 0.3:
            early = rng.random() < 0.15
            plan.faults.append(Fault(kind, victim, at=rng.random() if early else 1.1 + rng.random()))
        elif roll < 0.45:
            plan.faults.append(Fault(kind, victim, at=together + rng.random() * rng.choice((0.0, 0.02))))
        else:
            point = rng.choice(IN_A_RECOVERY if roll > 0.7 else POINTS)
            who = rng.choice(("self", "self", victim))
            plan.faults.append(Fault(kind, who, point=point, nth=rng.randint(1, 2 * len(plan.job.rank_nodes))))
    if rng.random() < 0.1:
        rank = rng.randrange(len(plan.job.rank_nodes))
        where = rng.choice(("build", "forward", "forward", "forward"))
        boundary = -1 if where == "build" else rng.randrange(plan.steps)
        plan.mistakes.append(Mistake(rank, where, boundary, rng.choice((1, 1, 2, 99))))
    if rng.random() < 0.02:
        plan.faults.append(Fault("stop_job", "any", at=rng.random() * 2.0))
