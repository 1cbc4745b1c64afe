"""From a seed to the shape of a job and to what goes wrong in it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from phoenix_core.roster import Job
from phoenix_core.settings import Detection

DETECTION: Final = Detection(silent_s=1.0, hang_floor_s=2.0, between_steps_s=8.0, first_step_s=30.0, lease_s=2.0)
"""A process that is silent altogether is found before a hang is suspected: who waits for its word as a holder is
behind in the collectives, and would be blamed in its place.
"""

POINTS: Final = (
    "start", "parked", "build", "forward", "backward", "gradient_sync", "optimizer", "commit", "quiesce", "offered",
    "planned", "fetched", "restored", "resumed", "finished", "epilogue",
)  # fmt: skip
"""Places in a worker's side of the protocol; see Worker._point."""
IN_A_RECOVERY: Final = ("start", "build", "quiesce", "offered", "planned", "fetched", "restored", "resumed")

KINDS: Final = ("kill",) * 8 + (
    "hang", "hang", "stop", "stop", "silent", "pause", "pause", "agent", "agent", "partition", "partition", "peer_link",
    "coordinator", "coordinator", "cut", "cut", "reset", "device", "device", "gpu", "gpu",
)  # fmt: skip


@dataclass
class Fault:
    """Where `point` is empty: `at` so many seconds; else at the `nth` time that any worker comes to that point.

    Both count from the instant at which training began, or, where it is `early`, from the job's start. `victim`: rank,
    spare, any; self for the one that comes to the point, dead for a node on which a worker has died. `acts`: how many
    more acts the coordinator is granted; None for any number. `lasts`: seconds until it heals; None for any time.
    """

    kind: str
    victim: str
    at: float = 0.0
    point: str = ""
    nth: int = 1
    early: bool = False
    acts: int | None = None
    lasts: float | None = None
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
    sharded: bool
    copy_s: float
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
        sharded=rng.random() < 0.3,
        copy_s=rng.choice((0.01, 0.06, 0.2)),
    )
    _add_faults(plan, rng)
    return plan


def _add_faults(plan: Plan, rng: random.Random) -> None:
    together = rng.random() * 0.3
    count = rng.choice((0, 1, 1, 2, 2, 3, 4))
    if count > 1:
        # Most of the others strike in the recovery that this one begins.
        plan.faults.append(Fault("kill", "rank", at=rng.random() * 0.3))
    for _ in range(count - len(plan.faults)):
        kind = rng.choice(KINDS)
        victim = rng.choice(("rank", "rank", "rank", "spare", "any"))
        early = rng.random() < 0.1
        roll = rng.random()
        if roll < 0.3:
            plan.faults.append(Fault(kind, victim, at=rng.random() * (1.3 if early else 0.4), early=early))
        elif roll < 0.5:
            plan.faults.append(Fault(kind, victim, at=together + rng.random() * rng.choice((0.0, 0.02))))
        else:
            point = rng.choice(IN_A_RECOVERY if roll > 0.7 else POINTS)
            if point in ("start", "build") and rng.random() < 0.4:
                kind = "hang"
            who = rng.choice(("self", "self", victim))
            nth = rng.randint(1, len(plan.job.rank_nodes) + 2)
            plan.faults.append(Fault(kind, who, point=point, nth=nth, early=early))
    if rng.random() < 0.1:
        plan.faults += rng.choice((_failure_while_another_builds, _death_before_safety, _hang_at_the_end))(plan, rng)
    if rng.random() < 0.1:
        plan.faults += rng.choice((_death_while_nobody_leads, _coordinator_in_a_recovery, _verdict_unsaid))(plan, rng)
    if rng.random() < 0.1:
        plan.faults += _cut_in_mid_job(plan, rng)
    if rng.random() < 0.1:
        plan.faults += rng.choice((_node_lost_after_its_worker, _alone_ahead))(plan, rng)
    if rng.random() < 0.1:
        rank = rng.randrange(len(plan.job.rank_nodes))
        where = rng.choice(("build", "forward", "forward", "forward"))
        boundary = -1 if where == "build" else rng.randrange(plan.steps)
        plan.mistakes.append(Mistake(rank, where, boundary, rng.choice((1, 1, 2, 99))))
    if rng.random() < 0.02:
        plan.faults.append(Fault("stop_job", "any", at=rng.random() * 0.5))
    if rng.random() < 0.1:
        plan.faults += _spares_that_fail_as_they_start(plan, rng)


# ------------------------------------------------------------------ rare by chance, so they are planned


def _failure_while_another_builds(_: Plan, rng: random.Random) -> list[Fault]:
    """A replacement's script hangs while it builds its model, and another rank fails in that recovery."""
    return [
        Fault("kill", "rank", at=rng.random() * 0.3),
        Fault("hang", "self", point="build"),
        Fault("kill", "rank", point=rng.choice(("offered", "planned", "restored"))),
    ]


def _death_before_safety(plan: Plan, rng: random.Random) -> list[Fault]:
    """A rank dies while what it keeps of its state has not come to its holder."""
    point = rng.choice(("forward", "backward", "gradient_sync"))
    return [Fault("cut_then_kill", "self", point=point, nth=rng.randint(1, 2 * len(plan.job.rank_nodes)))]


def _hang_at_the_end(plan: Plan, rng: random.Random) -> list[Fault]:
    """A rank hangs in its last step, when others may be through."""
    last = len(plan.job.rank_nodes) * plan.steps - rng.randrange(len(plan.job.rank_nodes))
    return [Fault("hang", "self", point=rng.choice(("optimizer", "commit")), nth=last)]


def _death_while_nobody_leads(_: Plan, rng: random.Random) -> list[Fault]:
    """The coordinator's process ends, and somebody fails before another one is told anything."""
    at = rng.random() * 0.4
    kind = rng.choice(("kill", "stop", "agent"))
    return [Fault("coordinator", "any", at=at), Fault(kind, "any", at=at + rng.random() * 0.2)]


def _coordinator_in_a_recovery(_: Plan, rng: random.Random) -> list[Fault]:
    """It ends at a point of a recovery, and now and then the next one does too."""
    fault = Fault("coordinator", "any", point=rng.choice(IN_A_RECOVERY), nth=rng.randint(1, 4))
    again = [Fault("coordinator", "any", at=rng.random())] if rng.random() < 0.3 else []
    return [Fault("kill", "rank", at=rng.random() * 0.3), fault, *again]


def _cut_in_mid_job(plan: Plan, rng: random.Random) -> list[Fault]:
    """A node loses its data network for long, once the job's pace is known: ranks wait for it in a collective, others
    for its word as their holder."""
    plan.steps = 4
    nth = 1 + len(plan.job.rank_nodes) * rng.choice((2, 3)) + rng.randrange(len(plan.job.rank_nodes))
    point = rng.choice(("forward", "backward", "gradient_sync"))
    return [Fault("cut", "self", point=point, nth=nth, lasts=rng.choice((4.0, 12.0, 40.0)))]


def _node_lost_after_its_worker(_: Plan, rng: random.Random) -> list[Fault]:
    """A rank dies, and its node before a worker is started there in its place."""
    point = rng.choice(("quiesce", "offered", "planned", "fetched", "restored", "resumed"))
    kind = rng.choice(("agent", "partition"))
    return [Fault("kill", "rank", at=rng.random() * 0.3), Fault(kind, "dead", point=point, nth=rng.randint(1, 4))]


def _alone_ahead(plan: Plan, rng: random.Random) -> list[Fault]:
    """Connections break when one rank has come through the last collective of a step and others may not have; it dies
    while those fetch its state."""
    size = len(plan.job.rank_nodes)
    nth = 1 + size * rng.randrange(plan.steps)
    point, who = rng.choice(("planned", "fetched")), rng.choice(("rank", "self"))
    return [
        Fault("reset", "self", point="optimizer", nth=nth),
        Fault("kill", who, point=point, nth=rng.randint(1, size)),
    ]


def _verdict_unsaid(_: Plan, rng: random.Random) -> list[Fault]:
    """The coordinator decides that a rank has failed, and its process ends before it has told everybody."""
    at = rng.random() * 0.4
    kind = rng.choice(("stop", "stop", "silent", "kill"))
    return [Fault(kind, "rank", at=at), Fault("coordinator", "any", at=at, acts=rng.choice((1, 1, 2, 3)))]


def _spares_that_fail_as_they_start(plan: Plan, rng: random.Random) -> list[Fault]:
    """More of them than restarts are allowed, and sooner or later a rank needs one."""
    starts = range(1, plan.job.max_restarts + rng.choice((1, 2, 3, 5)))
    ranks = [Fault("kill", "rank", at=0.2 + rng.random()) for _ in range(rng.choice((0, 1, 1, 2)))]
    return [
        Fault("kill", "spare", at=rng.random() * 0.2),
        *(Fault("kill", "self", point="start", nth=n) for n in starts),
        *ranks,
    ]
