"""What must hold at every instant of every simulated job. Each rule is a method of `Checks` with its own name.

The checks see all processes at once, also what the coordinator cannot know; they never ask the code that
they judge for its opinion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from phoenix_core.membership import RECOVERY_LIMIT_S
from phoenix_core.protocol import (
    Announce,
    Decision,
    End,
    Input,
    Kill,
    NodeLost,
    Record,
    Release,
    Resume,
    SendPlan,
    Spawn,
)
from phoenix_core.roster import Phase, State
from phoenix_core.world import World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.worker import Worker

RECOVERY_BOUND_S: Final = 12.0
"""A recovery without a hang: detection, a worker that starts, and a late message or two."""
HANG_BOUND_S: Final = RECOVERY_LIMIT_S + 40.0
"""What each hang may cost beyond that: the limit of a recovery, or that of a start or first step."""
RUN_BOUND_S: Final = 15.0
FENCE_BOUND_S: Final = 2.0


class Violation(AssertionError):
    """An invariant that does not hold; `rule` is its name."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def require(holds: bool, rule: str, what: str) -> None:
    if not holds:
        raise Violation(rule, what)


class Had(NamedTuple):
    """The state that one worker has: the boundary of its tensors, and small states as (rank, boundary)."""

    whole: int | None
    small: set[tuple[int, int]]


class Checks:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.generation = 0
        self.first_ranks: tuple[str, ...] = ()
        self.resumed_generation, self.resumed_at = 0, 0.0
        self.committed_by_all = 0
        self.reached: dict[int, int] = {}
        self.fenced: dict[str, float] = {}
        self.failures: list[tuple[str, int | None]] = []
        self.in_a_row: Counter[int] = Counter()
        self.losses: set[tuple[str, int]] = set()
        self.spread = len(set(cluster.job.rank_nodes)) > 1
        self.lost_nodes: set[str] = set()
        self.released = self.stop_asked = False
        self.nobody_can_tell = False
        self.cut_nodes: set[str] = set()
        self.quarantined: set[str] = set()
        self.struck: set[str] = set()
        self.has_resumed: set[str] = set()
        self.last_fault, self.hangs = 0.0, 0
        self.faults: list[str] = []
        self.recovering_since: float | None = None
        self.on_the_way: dict[tuple[str, int], list[Had]] = {}
        self.has: dict[tuple[str, int], Had] = {}

    # ---------------------------------------------------------------- decisions of the coordinator

    def told(self, event: Input) -> None:
        """What the coordinator knows from now on, whether it decides anything or not."""
        if isinstance(event, NodeLost):
            self.lost_nodes.add(event.node)

    def decided(self, event: Input, decisions: Sequence[Decision], before: int) -> None:
        self.the_fenced_have_no_say(event, decisions)
        self.every_failed_worker_is_fenced(decisions)
        for decision in decisions:
            match decision:
                case Record(kind="failure_detected"):
                    self._failed(decision)
                case Announce():
                    self.generations_only_grow(decision)
                    self.every_place_has_one_worker(decision.world)
                    self.generation = decision.world.generation
                    members = self.cluster.coordinator.membership.members
                    self.spread = len({members[name].node for name in decision.world.ranks}) > 1
                case SendPlan():
                    self.a_restore_uses_the_greatest_complete_step(decision)
                case Spawn():
                    self.nothing_starts_on_a_lost_node(decision)
                case Record(kind="collective_broken" | "restore_failed"):
                    if not self.cluster.coordinator.membership.watch.parted:  # else the network is to blame
                        self._counted(str(decision.fields["worker"]), int(str(decision.fields["rank"])))
                case Record(kind="node_quarantined"):
                    self.quarantined.add(str(decision.fields["node"]))
                case Release():
                    self.all_leave_together()
                    self.released = True
        if self.cluster.coordinator.membership.phase is Phase.RECOVERING and self.recovering_since is None:
            self.recovering_since = self.cluster.clock.now

    def coordinator_took_over(self, decisions: Sequence[Decision]) -> None:
        """What the one before had decided and told nobody, is not known to the next; which may decide otherwise."""
        membership, now = self.cluster.coordinator.membership, self.cluster.clock.now
        self.lost_nodes.update(membership.lost_nodes)
        known = {name for name, member in membership.members.items() if member.alive}
        known |= {str(d.fields["worker"]) for d in decisions if isinstance(d, Record) and d.kind == "failure_detected"}
        self.quarantined = set(membership._quarantine.nodes)
        self.fenced = {worker: now for worker in self.fenced if worker not in known}
        self.recovering_since = None

    def no_worker_is_named_twice(self, worker: str) -> None:
        require(worker not in self.cluster.workers, "no worker is named twice", worker)

    def _failed(self, record: Record) -> None:
        worker, rank = str(record.fields["worker"]), record.fields["rank"]
        assert rank is None or isinstance(rank, int)
        self.only_the_faulty_are_blamed(worker, str(record.fields["cause"]), str(record.fields["node"]))
        self.fenced[worker] = self.cluster.clock.now
        self._counted(worker, rank)
        self.losses.add((str(record.fields["node"]) if self.spread else worker, self.generation))

    def _counted(self, worker: str, rank: int | None) -> None:
        self.failures.append((worker, rank))
        if rank is not None:
            self.in_a_row[rank] += 1
            self.a_crash_loop_is_given_up(rank)

    def a_crash_loop_is_given_up(self, rank: int) -> None:
        # Where steps are executed again the coordinator may not have heard of the first time: it forgives once more.
        most = (self.cluster.job.max_restarts + 1) * (2 if self.cluster.plan.sharded else 1)
        rule = "a crash loop is given up"
        require(self.in_a_row[rank] <= most, rule, f"rank {rank} failed {self.in_a_row[rank]} times in a row")

    def the_fenced_have_no_say(self, event: Input, decisions: Sequence[Decision]) -> None:
        worker = getattr(event, "worker", "")
        require(worker not in self.fenced, "the fenced have no say", f"{event} led to {decisions}")

    def every_failed_worker_is_fenced(self, decisions: Sequence[Decision]) -> None:
        failed = {str(d.fields["worker"]) for d in decisions if isinstance(d, Record) and d.kind == "failure_detected"}
        killed = {d.worker for d in decisions if isinstance(d, Kill)}
        require(failed <= killed, "every failed worker is fenced", f"{failed - killed} failed and may go on")

    def only_the_faulty_are_blamed(self, worker: str, cause: str, node: str) -> None:
        """A rank that has state is never given up for what befell another."""
        innocent = cause == "no_progress" and worker not in self.struck and worker in self.has_resumed
        require(not innocent, "only the faulty are blamed", f"nothing ever happened to {worker}")
        # Of two nodes that do not reach each other nobody can say which one is cut off.
        others = {m.node for m in self.cluster.coordinator.membership.members.values() if m.alive} - {node}
        innocent = cause == "cut_off" and node not in self.cut_nodes and len(others) > 1
        require(not innocent, "only the faulty are blamed", f"{node} was never cut off")

    def generations_only_grow(self, announced: Announce) -> None:
        """The first world alone may be said again, by a coordinator that does not know who has heard it."""
        world = announced.world
        again = announced.fresh and (world.generation, world.ranks) == (self.generation, self.first_ranks)
        if announced.fresh:
            self.first_ranks = world.ranks
        follows = world.generation > self.generation or again
        require(follows, "generations only grow, one world each", f"{world} follows generation {self.generation}")

    def every_place_has_one_worker(self, world: World) -> None:
        size = len(self.cluster.job.rank_nodes)
        good = len(set(world.ranks)) == size == len(world.ranks)
        require(good, "one worker per rank, one rank per worker", f"{world}")
        lost = [worker for worker in world.ranks if worker in self.fenced]
        require(not lost, "a fenced worker never gets a rank", f"{lost} in {world}")

    def nothing_starts_on_a_lost_node(self, spawn: Spawn) -> None:
        require(spawn.node not in self.lost_nodes, "nothing starts on a lost node", f"{spawn}")
        require(spawn.node not in self.quarantined, "nothing starts on a node in quarantine", f"{spawn}")

    def a_restore_uses_the_greatest_complete_step(self, sent: SendPlan) -> None:
        best = self.best_boundary()
        boundary = sent.plan.boundary
        require(boundary == best, "a restore uses the greatest complete step", f"{boundary} instead of {best}")
        # Without live twins the last boundary counts once its snapshots are safe, before the next optimizer.
        safe = boundary >= self.committed_by_all - self.cluster.plan.sharded
        require(safe, "a committed step is never lost", f"back to {boundary} from {self.committed_by_all}")

    def best_boundary(self) -> int | None:
        """The greatest boundary that can be put together from what the workers of the world really have."""
        names = self.cluster.coordinator.membership.ranks
        there = {rank: self.has[w, self.generation] for rank, w in enumerate(names) if (w, self.generation) in self.has}
        lives = {had.whole for had in there.values() if had.whole is not None}
        kept = {boundary for had in there.values() for _, boundary in had.small} if self.cluster.plan.sharded else set()

        def possible(rank: int, boundary: int) -> bool:
            at_rest = self.cluster.plan.sharded and rank in there and there[rank].whole == boundary
            return at_rest or any((rank, boundary) in had.small for had in there.values())

        best = (b for b in sorted(lives | kept, reverse=True) if all(possible(rank, b) for rank in range(len(names))))
        return next(best, None)

    def offered(self, worker: Worker, generation: int) -> int:
        """What a worker really had when it made its offer, which is on its way now; the offer's number."""
        small = {(rank, b) for rank, kept in worker.held.boundaries().items() for b in kept}
        small |= {(rank, b) for rank, kept in worker.gate.own.boundaries().items() for b in kept}
        offers = self.on_the_way.setdefault((worker.name, generation), [])
        offers.append(Had(worker.whole, small))
        return len(offers) - 1

    def heard(self, worker: str, generation: int, number: int) -> None:
        self.has[worker, generation] = self.on_the_way[worker, generation][number]

    def all_leave_together(self) -> None:
        workers = self.cluster.world_workers()
        late = [rank for rank, w in enumerate(workers) if w is None or w.boundary < self.cluster.steps]
        require(not late, "all leave together, after the last step", f"ranks {late} have steps to go")

    def resumed(self, resume: Resume) -> None:
        """All ranks resume at the same boundary, in the undisturbed run's state."""
        for rank, worker in enumerate(self.cluster.world_workers()):
            there = worker is not None and worker.whole == resume.boundary and worker.generation == resume.generation
            require(there, "all ranks resume at the same boundary", f"rank {rank} does not, at {resume}")
        self.has_resumed.update(self.cluster.coordinator.membership.ranks)
        self.reached = dict.fromkeys(range(len(self.cluster.job.rank_nodes)), resume.boundary)
        self.resumed_generation, self.resumed_at = resume.generation, self.cluster.clock.now
        self.recovery_ends_within_its_bound()
        self.recovering_since = None
        self.losses.clear()

    # ---------------------------------------------------------------- what workers do

    def restored(self, worker: Worker, boundary: int) -> None:
        self.state_is_the_undisturbed_runs(worker, boundary)

    def committed(self, worker: Worker, step: int) -> None:
        self.no_stale_worker_commits(worker, step)
        self.state_is_the_undisturbed_runs(worker, step + 1)
        self.reached[worker.rank] = step + 1
        if min(self.reached.values()) > self.committed_by_all:
            self.committed_by_all = min(self.reached.values())
            self.in_a_row.clear()

    def the_healthy_never_fail(self, worker: Worker, code: int) -> None:
        """The protocol itself never makes a process end in error that nothing befell."""
        fine = code == 0 or worker.name in self.struck
        require(fine, "the healthy never fail", f"{worker.name} ended with {code}")

    def no_stale_worker_commits(self, worker: Worker, step: int) -> None:
        """What a worker of an old generation still commits, all ranks had exchanged before the new one resumed."""
        stale = worker.generation < self.resumed_generation and worker.exchanged_at > self.resumed_at
        require(not stale, "no stale worker commits", f"{worker.name} step {step} in generation {worker.generation}")

    def state_is_the_undisturbed_runs(self, worker: Worker, boundary: int) -> None:
        truth = self.cluster.truth
        exact = worker.tensors == truth.tensors[boundary] and worker.small == truth.small[boundary][worker.rank]
        rule = "every state is the undisturbed run's"
        require(exact, rule, f"{worker.name}, rank {worker.rank} at boundary {boundary}, is in another one")

    # ---------------------------------------------------------------- faults and time

    def fault_struck(self, kind: str, point: str, workers: Sequence[str] = ()) -> None:
        self.last_fault = self.cluster.clock.now
        self.faults.append(f"{kind} at {point}" if point else kind)
        self.struck.update(workers)
        self.stop_asked |= kind == "stop_job"

    def data_network_cut(self, node: str) -> None:
        self.cut_nodes.add(node)

    def on_tick(self) -> None:
        self.recovery_ends_within_its_bound()
        self.a_job_never_hangs()
        self.a_fenced_worker_never_acts()

    def recovery_ends_within_its_bound(self) -> None:
        if self.recovering_since is not None:
            took = self.cluster.clock.now - max(self.recovering_since, self.last_fault)
            bound = RECOVERY_BOUND_S + self.hangs * HANG_BOUND_S
            require(took <= bound, "a recovery ends within its bound", f"{took:.1f} s, the bound is {bound:.0f} s")

    def a_job_never_hangs(self) -> None:
        """Except where all ranks hang at once in code of the script's: that may as well be a long evaluation."""
        quiet = self.cluster.clock.now - self.last_fault
        bound = RUN_BOUND_S + RECOVERY_BOUND_S + self.hangs * HANG_BOUND_S
        phase = self.cluster.coordinator.membership.phase
        if quiet > bound and phase is Phase.RUNNING:
            self.nobody_can_tell = all(w and w.stuck for w in self.cluster.world_workers())
        require(
            quiet <= bound or self.nobody_can_tell,
            "a job never hangs",
            f"still {phase} {quiet:.0f} s after the last fault",
        )

    def a_fenced_worker_never_acts(self) -> None:
        for name, since in self.fenced.items():
            worker = self.cluster.workers.get(name)
            if worker is not None and worker.alive and self.cluster.clock.now - since > FENCE_BOUND_S:
                cut_off = not self.cluster.nodes[worker.node].connected
                require(cut_off, "a fenced worker never acts", f"{name} lives on")

    # ---------------------------------------------------------------- the end

    def ended(self, end: End) -> None:
        match end.outcome:
            case "completed":
                self.a_completed_job_has_executed_every_step_once()
            case "stopped":
                require(self.stop_asked, "a job stops only when asked", end.reason)
            case _:
                self.a_failed_job_names_a_true_reason(end.reason)

    def a_completed_job_has_executed_every_step_once(self) -> None:
        rule = "a completed job has executed every step once"
        for rank, worker in enumerate(self.cluster.world_workers()):
            there = worker is not None and worker.whole == self.cluster.steps and worker.leaving
            require(there, rule, f"rank {rank} is not through")
            assert worker is not None
            self.state_is_the_undisturbed_runs(worker, self.cluster.steps)

    def a_failed_job_names_a_true_reason(self, reason: str) -> None:
        rule = "a failed job names a true reason"
        times = re.match(r"(?:rank (\d+)|a spare) failed (\d+) times", reason)
        if times is not None:
            rank = int(times[1]) if times[1] else None
            count = sum(failed == rank for _, failed in self.failures)
            require(count >= int(times[2]) > self.cluster.job.max_restarts, rule, f"{count} failures: {reason}")
            self.spares_end_only_what_needs_one(rank, reason)
        elif "no step is left" in reason:
            require(self.best_boundary() is None, "a committed step is never lost", reason)
            self.one_loss_is_survived(reason)
        elif "no spare is left" in reason:
            self.gives_up_only_where_nobody_can_start(reason)
        elif "before training began" in reason:
            require(self.resumed_generation == 0 and bool(self.failures), rule, reason)
        elif "after the last step" in reason:
            require(self.released, rule, reason)
        else:
            require(False, "a failed job names its reason", reason)

    def spares_end_only_what_needs_one(self, rank: int | None, reason: str) -> None:
        membership = self.cluster.coordinator.membership
        parked = sum(member.state is State.PARKED for member in membership.members.values())
        needed = rank is not None or len(membership._vacant) > parked
        require(needed, "spares that fail end only a job that needs one", reason)

    def one_loss_is_survived(self, reason: str) -> None:
        """Since the last resumption one node (or, where all share one, one worker) was lost, at one instant."""
        survivable = len(self.losses) > 1 or len(self.cluster.job.rank_nodes) == 1
        require(survivable, "one loss is survived", f"only {self.losses} was lost: {reason}")

    def gives_up_only_where_nobody_can_start(self, reason: str) -> None:
        membership = self.cluster.coordinator.membership
        slots = [*self.cluster.job.rank_nodes, *self.cluster.job.spare_nodes]
        for node in set(slots) - self.lost_nodes - self.quarantined:
            there = sum(m.node == node and m.worker not in self.fenced for m in membership.members.values())
            require(there >= slots.count(node), "gives up only where nobody can start", f"{node} could: {reason}")
