"""Who is in the job and what happens next: a state machine without clock, socket or torch.

`Membership.handle(input, now)` takes one thing that happened and returns what is to be done. The coordinator drives it
with real time, the simulator with a virtual one. A failure at any instant, of anybody, has one answer: the next
generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.ondisk import OnDisk
from phoenix_core.placement import Offer, RestorePlan, plan_restore
from phoenix_core.protocol import (
    Alert,
    Announce,
    CheckpointWritten,
    CollectiveBroken,
    Decision,
    DeviceFailed,
    End,
    GpuFailed,
    Input,
    Kill,
    LoopFinished,
    NodeLost,
    Probed,
    Progressed,
    Quiesced,
    Record,
    Release,
    Restored,
    RestoreFailed,
    Resume,
    ScriptFailed,
    SendPlan,
    Spawn,
    StopRequested,
    Tick,
    WorkerExited,
    WorkerParked,
    WorkerSuspected,
)
from phoenix_core.quarantine import Quarantine
from phoenix_core.restarts import A_SPARE, Restarts, left_alone, no_worker_for, reason_before_training
from phoenix_core.roster import Job, Member, Phase, State, late_starters, parked, taken_out
from phoenix_core.watch import CUT_OFF, Seen, Watch, late_in_recovery
from phoenix_core.world import World

RECOVERY_LIMIT_S: Final = 60.0
"""A rank that has not reported by then in a recovery is taken for failed itself."""


class Membership:
    """The state of one job; see the module's docstring."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.phase = Phase.FORMING
        self.members: dict[str, Member] = {}
        self.ranks: list[str] = []
        self._rank_of: dict[str, int] = {}
        self.generation = 0
        self.joining, self._vacant, self._expected = set[int](), set[int](), set[int]()
        self._offers: dict[int, Offer] = {}
        self._plan: RestorePlan | None = None
        self._restored, self._finished = set[int](), set[int]()
        self._to_respawn: list[str] = []
        self._restarts = Restarts(job.max_restarts, job.begins_at)
        self._on_disk, self._quarantine = OnDisk(job.begins_at), Quarantine()
        self._spawned, self._last_failure, self._recovering_since = 0, "", 0.0
        self._resumed_at: int | None = None
        self.watch = Watch(job.detection)

    # ---------------------------------------------------------------- entry points

    def start(self) -> list[Decision]:
        """The first workers: ranks in order, then spares."""
        spawned = [self._spawn(node) for node in (*self.job.rank_nodes, *self.job.spare_nodes)]
        self.ranks = [decision.worker for decision in spawned[: len(self.job.rank_nodes)]]
        self._rank_of = {worker: rank for rank, worker in enumerate(self.ranks)}
        self._expected = set(self._rank_of.values())  # to park
        return list(spawned)

    def handle(self, event: Input, now: float) -> list[Decision]:
        """The decisions that follow from `event` at `now` (seconds of any monotonic clock)."""
        if self.phase is Phase.ENDED:
            return []
        match event:
            case WorkerParked():
                return self._parked(event, now)
            case WorkerExited():
                return self._exited(event, now)
            case WorkerSuspected():
                return self._failed([event.worker], event.cause, event.detail, now)
            case NodeLost():
                lost = [m.worker for m in self.members.values() if m.node == event.node and m.alive]
                self._to_respawn = [node for node in self._to_respawn if node != event.node]
                return self._failed(lost, "node_lost", event.detail, now)
            case Progressed():
                return self._progressed(event, now)
            case Quiesced():
                return self._quiesced(event)
            case Restored():
                return self._was_restored(event, now)
            case RestoreFailed():
                return self._once_more(event, now)
            case CheckpointWritten():
                self._on_disk.written(self._rank_of.get(event.worker), event.boundary, len(self.ranks))
                return []
            case LoopFinished():
                return self._loop_finished(event)
            case ScriptFailed():
                if event.worker in self.members:
                    self.members[event.worker].error = event.error
                return []
            case DeviceFailed() | GpuFailed():
                return self._device_failed(event, now)
            case Probed():
                self.watch.probed(event.node, event.number, event.unreached)
                return []
            case StopRequested():
                return self._end("stopped", event.reason)
            case Tick():
                return self._tick(now)

    @property
    def world(self) -> World:
        return World(generation=self.generation, ranks=tuple(self.ranks), spares=self._spares)

    @property
    def _spares(self) -> tuple[str, ...]:
        parked = (m.worker for m in self.members.values() if m.state is State.PARKED)
        return tuple(worker for worker in parked if worker not in self._rank_of)

    # ---------------------------------------------------------------- workers come and go

    def _spawn(self, node: str) -> Spawn:
        worker, self._spawned = f"w{self._spawned}", self._spawned + 1
        self.members[worker] = Member(worker=worker, node=node)
        return Spawn(worker=worker, node=node)

    def _parked(self, event: WorkerParked, now: float) -> list[Decision]:
        member = self.members.get(event.worker)
        if member is None or member.state is not State.STARTING:
            return []
        member.state, member.address = State.PARKED, event.address
        rank = self._rank_of.get(member.worker)
        if rank is None:
            self._restarts.spares_work()
        if self.phase is Phase.FORMING:
            self._expected -= {rank}
            first = [] if self._expected else self._form(set(range(len(self.ranks))), now)
            return first if rank is not None else [parked(member), *first]
        return [parked(member), *self._fill_vacancies(now)]

    def _exited(self, event: WorkerExited, now: float) -> list[Decision]:
        member = self.members.get(event.worker)
        if member is None or not member.alive:
            return []
        if self.phase is Phase.LEAVING:
            return self._left(member, event.code)
        return self._failed([event.worker], "exit", member.end(event.code), now)

    def _left(self, member: Member, code: int) -> list[Decision]:
        member.state = State.GONE
        if code != 0 and member.worker in self._rank_of:
            who = f"rank {self._rank_of[member.worker]} ({member.worker})"
            return self._end("failed", f"{who} ended with {member.end(code)} after the last step")
        left = not any(self.members[worker].alive for worker in self.ranks)
        return self._end("completed", "every rank executed its last step") if left else []

    def _device_failed(self, event: DeviceFailed | GpuFailed, now: float) -> list[Decision]:
        failed, fenced = self._quarantine.struck(event, self.members, self._rank_of)
        decisions = self._failed(failed, "device_error", event.error, now, **event.facts())
        return [*decisions, *fenced, *(self._fill_vacancies(now) if fenced and not failed else [])]

    def _failed(self, workers: Sequence[str], cause: str, detail: str, now: float, **facts: object) -> list[Decision]:
        """Take `workers` out: fence them, fill their ranks, make up for them later."""
        decisions: list[Decision] = []
        self._to_respawn = [node for node in self._to_respawn if node not in self._quarantine.nodes]
        failed = [self.members[w] for w in workers if w in self.members and self.members[w].alive]
        lost = {self._rank_of[member.worker] for member in failed if member.worker in self._rank_of}
        self._vacant |= lost
        for member in failed:
            rank = self._rank_of.get(member.worker)
            generation = self.generation + 1 if rank is not None else self.generation
            decisions += taken_out(member, rank, generation, {"cause": cause, "detail": detail, **facts})
            if cause != "node_lost" and member.node not in self._quarantine.nodes:
                # Where a rank ran a worker can be started, which is less sure where a spare has just failed.
                self._to_respawn.insert(0 if rank is not None else len(self._to_respawn), member.node)
        if not failed:
            return []
        if self.phase is Phase.LEAVING:
            after = f"{failed[0].worker} failed after the last step ({detail or cause})"
            return [*decisions, *(self._end("failed", after) if lost else [])]
        spares_fail = self._restarts.failed(self._rank_of.get(m.worker, A_SPARE) for m in failed)
        self._last_failure = f"{failed[0].worker} on {failed[0].node} ({detail or cause})"
        if give_up := self._reason_to_give_up(failed[0], detail or cause):
            return [*decisions, *self._end("failed", give_up)]
        if lost:
            self.phase = Phase.RECOVERING
            self._expected, self._plan = set(), None
        if self._vacant:  # also where it was a worker on its way to one of them that failed
            return [*decisions, *self._fill_vacancies(now)]
        if spares_fail:
            decisions.append(self._restarts.no_more_spares(self._last_failure))
        return [*decisions, *(self._respawn() if self.phase is Phase.RUNNING else [])]

    def _reason_to_give_up(self, member: Member, why: str) -> str:
        if self.phase is Phase.FORMING or (self.phase is Phase.BUILDING and member.worker in self._rank_of):
            return reason_before_training(f"{member.worker} on {member.node}", why)
        return self._restarts.reason_to_give_up(self._last_failure)

    # ---------------------------------------------------------------- a new generation

    def _fill_vacancies(self, now: float) -> list[Decision]:
        """Give every vacant rank a spare; where there are too few, start workers and wait for them."""
        if not self._vacant or self.phase is not Phase.RECOVERING:
            return []
        if len(spares := self._spares) >= len(self._vacant):
            filled = set(self._vacant)
            self._rank_of = {worker: rank for worker, rank in self._rank_of.items() if rank not in filled}
            for rank, worker in zip(sorted(filled), spares, strict=False):
                self.ranks[rank] = worker
                self._rank_of[worker] = rank
            return self._form(filled, now)
        coming = sum(m.state is State.STARTING for m in self.members.values())
        missing = len(self._vacant) - len(spares) - coming
        if missing > 0 and self._restarts.spares_fail:
            return self._end("failed", self._restarts.why_no_spare(self._last_failure))
        started: list[Decision] = [self._spawn(node) for node in self._to_respawn[: max(0, missing)]]
        del self._to_respawn[: len(started)]
        if len(started) < missing:
            return [*started, *self._end("failed", no_worker_for(self._vacant, self._quarantine.nodes))]
        return [Alert(generation=self.generation + 1), *started]

    def _form(self, filled: set[int], now: float) -> list[Decision]:
        """Announce the next generation, in which `filled` ranks have a worker that they had not before."""
        fresh = self.phase is Phase.FORMING
        self.generation += 1
        self._vacant.clear()
        self._offers, self._plan = {}, None
        self._restored, self._finished = set(), set()
        self.joining = set() if fresh else (self.joining | filled)
        self._expected = set() if fresh else set(range(len(self.ranks))) - filled
        self._recovering_since = now
        self.phase = Phase.BUILDING if fresh else Phase.RECOVERING
        for worker in self.ranks:
            self.members[worker].state = State.ACTIVE
            self.members[worker].changed_at = now
        world = self.world
        formed = Record(kind="world_formed", fields={**world.to_json(), "joining": sorted(self.joining)})
        decisions: list[Decision] = [formed]
        for r in [] if fresh else sorted(filled):
            assigned = {"worker": self.ranks[r], "rank": r, "generation": self.generation}
            decisions.append(Record(kind="spare_assigned", fields=assigned))
        joining = tuple(sorted(self.joining))
        decisions.append(Announce(world=world, joining=joining, fresh=fresh, boundary=self.job.begins_at))
        if fresh:
            self._plan = RestorePlan(boundary=self.job.begins_at, sources={})
        elif not self._expected:
            decisions += self._make_plan()
        return decisions

    def _rank_in(self, worker: str, generation: int) -> int | None:
        """The rank of a worker that speaks in the current generation; None for a stale voice."""
        return None if generation != self.generation or self._vacant else self._rank_of.get(worker)

    def _quiesced(self, event: Quiesced) -> list[Decision]:
        rank = self._rank_in(event.worker, event.generation)
        if rank is None or rank not in self._expected or self._plan is not None:
            return []
        self._offers[rank] = event.offer
        return self._make_plan() if len(self._offers) == len(self._expected) else []

    def _make_plan(self) -> list[Decision]:
        try:
            self._plan = plan_restore(self._offers, len(self.ranks))
        except SnapshotUnavailable as error:
            if not self._on_disk.boundary:
                hint = f"the last failure was of {self._last_failure}, and no whole checkpoint is on disk"
                return self._end("failed", f"{error}; {hint} (--checkpoint-dir keeps them)")
            self._plan = RestorePlan(boundary=self._on_disk.boundary, sources={}, disk=True)
        return [SendPlan(generation=self.generation, plan=self._plan)]

    def _once_more(self, event: RestoreFailed, now: float) -> list[Decision]:
        """What the plan promised was damaged, or a connection broke though nobody has failed: the same ranks again."""
        rank = self._rank_in(event.worker, event.generation)
        if rank is None or self._plan is None or self.phase.value not in event.phases:
            return []
        if self._plan.disk and event.kind == "restore_failed":
            self._on_disk.refuse(self._plan.boundary)
        self._restarts.failed([] if self.watch.parted else [rank])
        give_up = self._restarts.reason_to_give_up(f"{event.worker}: {event.reason}")
        fields = {"worker": event.worker, "rank": rank, "generation": self.generation, "reason": event.reason}
        told = Record(kind=event.kind, fields=fields)
        # Whoever keeps the others from meeting gets no more time for it than it had.
        keep = self.phase is Phase.RECOVERING and isinstance(event, CollectiveBroken)
        since = self._recovering_since if keep else now
        decisions = [told, *(self._end("failed", give_up) if give_up else self._form(set(), now))]
        self._recovering_since = since
        return decisions

    def _was_restored(self, event: Restored, now: float) -> list[Decision]:
        rank = self._rank_in(event.worker, event.generation)
        if rank is None or self._plan is None or self.phase not in (Phase.BUILDING, Phase.RECOVERING):
            return []
        self._restored.add(rank)
        self.members[event.worker].changed_at = now
        if len(self._restored) < len(self.ranks):
            return []
        self.phase = Phase.RUNNING
        self._resumed_at = self._plan.boundary
        joined, self.joining = {self.ranks[rank]: rank for rank in self.joining}, set()
        self._restarts.resumed(self._plan.boundary)
        for worker in self.ranks:
            self.members[worker].changed_at = now
        self.watch.resume(self._plan.boundary, joined, (self.members[w].progress.boundary for w in self.ranks))
        resumed = Record(kind="generation_resumed", fields={"generation": self.generation, "step": self._plan.boundary})
        return [resumed, Resume(generation=self.generation, boundary=self._plan.boundary)]

    # ---------------------------------------------------------------- progress

    def _progressed(self, event: Progressed, now: float) -> list[Decision]:
        member = self.members.get(event.worker)
        if member is None or member.state is not State.ACTIVE:
            return []
        before = member.progress.boundary
        if event.progress != member.progress:
            member.progress, member.changed_at = event.progress, now
        if self.phase is not Phase.RUNNING:
            return []
        lowest = self.watch.moved(before, event.progress.boundary, now)
        self._restarts.reached(lowest)
        if self._resumed_at is not None and lowest > self._resumed_at:
            # The new world has a step of its own: make up for the dead, off everybody's critical path.
            self._resumed_at = None
            self._restarts.spares_work()
            return self._respawn()
        return []

    def _respawn(self) -> list[Decision]:
        nodes = [] if self._restarts.spares_fail else self._to_respawn
        self._to_respawn = self._to_respawn[len(nodes) :]
        return [self._spawn(node) for node in nodes]

    def _loop_finished(self, event: LoopFinished) -> list[Decision]:
        rank = self._rank_in(event.worker, event.generation)
        if rank is None or self.phase is not Phase.RUNNING:
            return []
        self._finished.add(rank)
        if len(self._finished) < len(self.ranks):
            return []
        self.phase = Phase.LEAVING
        late = [Kill(worker=m.worker) for m in self.members.values() if m.state is State.STARTING]
        return [Release(), *late]

    def _end(self, outcome: str, reason: str) -> list[Decision]:
        self.phase = Phase.ENDED
        fields = {"outcome": outcome, "reason": reason}
        return [Record(kind="job_finished", fields=fields), End(outcome=outcome, reason=reason)]

    # ---------------------------------------------------------------- time

    def _tick(self, now: float) -> list[Decision]:
        seen = Seen()
        if self.phase is Phase.RUNNING:
            finished = [self.ranks[rank] for rank in self._finished]
            seen = self.watch.training(self.members, self.ranks, finished, now)
            if left := [worker for worker in seen.hung if worker in finished]:
                return self._end("failed", left_alone(self._rank_of[left[0]], left[0]))
            if seen.hung:
                return self._failed(seen.hung, "no_progress", seen.why, now)
            if seen.stuck:
                stuck = CollectiveBroken(worker=seen.stuck, generation=self.generation, reason=seen.why)
                return self._once_more(stuck, now)
        elif self.phase in (Phase.BUILDING, Phase.RECOVERING) and not self._vacant:
            limit = RECOVERY_LIMIT_S if self.phase is Phase.RECOVERING else self.job.detection.first_step_s
            if now - self._recovering_since > limit and not self.watch.parted:
                offered = set(self._offers) if self._plan is None else None
                late = late_in_recovery(self.ranks, self._expected, offered, self._restored, self.joining)
                return self._failed(late, "no_progress", f"not ready after {limit:.0f} s", now)
            if self.phase is Phase.RECOVERING:
                seen = self.watch.recovery(self.members, self.ranks, self._recovering_since, now)
        without = self._go_on_without(seen.cut, now) if seen.cut else []
        limit = self.job.detection.first_step_s
        late = late_starters(self.members.values(), now, limit)
        return [*seen.told, *without, *self._failed(late, "no_progress", f"not started after {limit:.0f} s", now)]

    def _go_on_without(self, nodes: Sequence[str], now: float) -> list[Decision]:
        """Fence what is cut off, as far as others can take over; until they can, the network may heal."""
        hit = [worker for worker in self.ranks if self.members[worker].node in nodes]
        waits = len(hit) > sum(self.members[worker].node not in nodes for worker in self._spares)
        told: list[Decision] = [Record(kind="nodes_cut_off", fields={"nodes": list(nodes), "waits": waits})]
        for node in () if waits else nodes:
            told += self._quarantine.fence(node, CUT_OFF, self.members.values(), self._rank_of)
        return [*told, *self._failed([] if waits else hit, "cut_off", CUT_OFF, now)]
