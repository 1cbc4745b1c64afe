"""The membership of a coordinator that was started anew: made from the ledger and from what the agents tell. Pure.

The ledger says what was decided, the agents what has come of it; training went on meanwhile. Where every rank was told
to resume the generation that was decided last, the new membership is that of the old coordinator and nobody notices.
Anything in between, a recovery at whatever point, is superseded: the next generation begins, from what the ranks
have then. What the agents saw fail, while nobody listened, is handled as if it were reported now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from phoenix_core.ledger import Ledger
from phoenix_core.membership import Membership
from phoenix_core.ondisk import OnDisk
from phoenix_core.placement import RestorePlan
from phoenix_core.protocol import (
    Announce,
    CheckpointWritten,
    CollectiveBroken,
    Decision,
    DeviceFailed,
    Input,
    Kill,
    LoopFinished,
    NodeLost,
    Progress,
    Record,
    Release,
    Restored,
    Spawn,
    WorkerExited,
    WorkerParked,
    WorkerSuspected,
)
from phoenix_core.restarts import Restarts
from phoenix_core.roster import Job, Member, Phase, State
from phoenix_core.witness import Account

NEVER_CAME: Final = "its agent did not come back to the coordinator that was started again"
BROKEN: Final = "a connection broke while there was no coordinator; nobody has failed"
UNSEEN: Final = "it ended while there was no coordinator"


class Succession(Membership):
    """A membership that can be handed on: `ledger` is what the next coordinator must be given of it."""

    def __init__(self, job: Job, found: Ledger) -> None:
        """`found` is the ledger of the coordinator before; empty for the first one, which calls `start`."""
        super().__init__(job)
        self.lost_nodes = list(found.lost_nodes)
        self._found = found
        self._resumed, self._ended = found.resumed, found.ended
        self._taking_over = False

    @property
    def ledger(self) -> Ledger:
        return Ledger(
            generation=self.generation,
            resumed=self._resumed,
            spawned=self._spawned,
            seats=tuple((worker, self.members[worker].node) for worker in self.ranks),
            vacant=tuple(sorted(self._vacant)),
            lost_nodes=tuple(self.lost_nodes),
            quarantined=tuple(sorted(self._quarantine.nodes)),
            device_errors=dict(self._quarantine.errors),
            failures=dict(self._restarts.counts),
            furthest=self._restarts.furthest,
            on_disk=self._on_disk.boundary,
            ended=self._ended,
        )

    def handle(self, event: Input, now: float) -> list[Decision]:
        if isinstance(event, NodeLost) and event.node not in self.lost_nodes:
            self.lost_nodes.append(event.node)
        decisions = super().handle(event, now)
        if self.phase is Phase.RUNNING:
            self._resumed = self.generation
        return decisions

    def _end(self, outcome: str, reason: str) -> list[Decision]:
        self._ended = (outcome, reason)
        return super()._end(outcome, reason)

    def _fill_vacancies(self, now: float) -> list[Decision]:
        return [] if self._taking_over else super()._fill_vacancies(now)  # one generation for all that has failed

    # ---------------------------------------------------------------- taking over

    def take_over(self, told: Mapping[str, Sequence[Account]], now: float) -> list[Decision]:
        """The decisions of the new coordinator's first instant.

        `told[node]` is what the agent of that node says of its workers; a node that is missing there is lost. The job
        of the ledger must have begun and not ended.
        """
        found = self._found
        assert found.seats and found.ended is None
        accounts = {account.worker: account for node in told.values() for account in node}
        self._restarts = Restarts(self.job.max_restarts, found.furthest)
        self._restarts.counts.update(found.failures)
        self._on_disk = OnDisk(found.on_disk)
        self._quarantine.nodes.update(found.quarantined)
        self._quarantine.errors.update(found.device_errors)
        if found.generation:
            self._sit_down(told, accounts, now)
            decisions = self._go_on(accounts)
        else:
            spawned = [spawn for spawn in self.start() if isinstance(spawn, Spawn)]
            decisions = [spawn for spawn in spawned if spawn.worker not in accounts and spawn.node in told]
        decisions.insert(0, self._record(accounts))
        self._taking_over = True
        decisions += self._catch_up(told, accounts, now)
        self._taking_over = False
        if self.phase is Phase.BUILDING:  # whoever has not heard of the first world hears it now
            return [*decisions, Announce(world=self.world, joining=(), fresh=True, boundary=self.job.begins_at)]
        if self.phase is Phase.RECOVERING and self.generation == self._found.generation:
            return decisions + (self._fill_vacancies(now) if self._vacant else self._form(set(), now))
        return decisions

    def _record(self, accounts: Mapping[str, Account]) -> Record:
        recovering = self.phase is Phase.RECOVERING
        alive = [worker for worker, account in accounts.items() if account.code is None]
        seated = [worker for worker in alive if worker in self._rank_of]
        parked = [w for w in alive if w not in seated and w in self.members and self.members[w].alive]
        fields = {"generation": self.generation + recovering, "ranks": len(seated), "spares": len(parked)}
        return Record(kind="coordinator_restarted", fields={**fields, "recovering": recovering})

    def _catch_up(
        self, told: Mapping[str, Sequence[Account]], accounts: Mapping[str, Account], now: float
    ) -> list[Decision]:
        """What happened while nobody led."""
        decisions: list[Decision] = []
        for event_of in BEFORE_FAILURES:
            decisions += self._replay(event_of, accounts, now)
        for node in dict.fromkeys((*self.job.rank_nodes, *self.job.spare_nodes)):
            if node not in told:  # also one that was lost before: a rank may have been there, and not been replaced yet
                decisions += self.handle(NodeLost(node=node, detail=NEVER_CAME), now)
        if self.phase is not Phase.ENDED:
            unseen = [worker for worker, node in self._found.seats if worker not in accounts and node in told]
            decisions += self._failed([worker for worker in unseen if self._found.generation], "exit", UNSEEN, now)
        for event_of in FAILURES_AND_AFTER:
            decisions += self._replay(event_of, accounts, now)
        return decisions

    def _replay(
        self, event_of: Callable[[Account], Input | None], accounts: Mapping[str, Account], now: float
    ) -> list[Decision]:
        events = [event for account in accounts.values() if (event := event_of(account)) is not None]
        return [decision for event in events for decision in self.handle(event, now)]

    def _sit_down(self, told: Mapping[str, Sequence[Account]], accounts: Mapping[str, Account], now: float) -> None:
        """Everybody takes the place that was decided, as if nobody else had failed since."""
        found = self._found
        self.generation, self._spawned = found.generation, found.spawned
        self.ranks = [worker for worker, _ in found.seats]
        self._vacant = set(found.vacant)
        self._rank_of = {worker: rank for rank, worker in enumerate(self.ranks) if rank not in self._vacant}
        for worker, node in found.seats:
            self.members[worker] = Member(worker=worker, node=node, state=State.ACTIVE, changed_at=now)
        for rank in found.vacant:
            self.members[self.ranks[rank]].state = State.FAILED
        for node, theirs in told.items():
            for account in theirs:
                self._place(account, node, now)
        for node in (node for node in told if node not in self._quarantine.nodes):
            slots = (*self.job.rank_nodes, *self.job.spare_nodes).count(node)
            there = sum(member.node == node and member.alive for member in self.members.values())
            self._to_respawn += [node] * (slots - there)
        if found.resumed:
            self._unseat({account.worker for account in accounts.values() if not account.told and account.code is None})

    def _unseat(self, untold: AbstractSet[str]) -> None:
        """Who has never been told of its rank is still a spare, and as good as any other one."""
        for rank, worker in enumerate(self.ranks):
            if worker in untold and self._rank_of.pop(worker, None) is not None:
                self._vacant.add(rank)
                self.members[worker].state = State.PARKED

    def _place(self, account: Account, node: str, now: float) -> None:
        worker = account.worker
        if account.code is not None and worker not in self._rank_of:
            return
        if worker in self._rank_of:
            state = State.ACTIVE
        elif account.told or worker in self.members or node in self._quarantine.nodes:
            state = State.FAILED  # it has lost its rank or may get none, and may not have heard that
        else:
            state = State.STARTING if account.address is None else State.PARKED
        member = Member(worker=worker, node=node, state=state, address=account.address, changed_at=now)
        member.error = account.error
        if account.progress:
            member.progress = Progress.from_json(account.progress)
        self.members[worker] = member

    def _go_on(self, accounts: Mapping[str, Account]) -> list[Decision]:
        """The phase that the job is in, by what its ranks were told; fences who has no place any more."""
        fenced = [m.worker for m in self.members.values() if m.state is State.FAILED]
        decisions: list[Decision] = [Kill(worker=worker) for worker in fenced]
        seated = [a for a in accounts.values() if a.worker in self._rank_of]
        alive = [account for account in seated if account.code is None]
        at_rest = bool(alive) and all(a.resumed == a.announced == self.generation for a in alive) and not self._vacant
        self._recovering_since = max(member.changed_at for member in self.members.values())
        if any(account.released for account in seated):
            self.phase = Phase.LEAVING
            return [*decisions, Release()]
        if at_rest:
            self.phase = Phase.RUNNING
            reached = [self.members[worker].progress.boundary for worker in self.ranks]
            self.watch.begin(reached)
            self._resumed_at = min(reached)
            self._plan = RestorePlan(boundary=min(reached), sources={})  # that all have followed
            self._restarts.reached(min(reached))
            return decisions
        if not self._resumed:  # it has no state yet that a recovery could save
            self.phase = Phase.BUILDING
            self._plan = RestorePlan(boundary=self.job.begins_at, sources={})
            return decisions
        self.phase = Phase.RECOVERING
        joining = [account.worker for account in seated if account.called > 1 and account.resumed == 0]
        self.joining = {self._rank_of[worker] for worker in joining}
        return decisions


def _parked(account: Account) -> Input | None:
    return WorkerParked(worker=account.worker, address=account.address) if account.address is not None else None


def _restored(account: Account) -> Input | None:
    return Restored(worker=account.worker, generation=account.restored) if account.restored else None


def _checkpointed(account: Account) -> Input | None:
    return CheckpointWritten(worker=account.worker, boundary=account.checkpointed) if account.checkpointed else None


def _device_failed(account: Account) -> Input | None:
    return DeviceFailed.from_json(account.worker, account.device_error) if account.device_error is not None else None


def _failed(account: Account) -> Input | None:
    if account.code is not None:
        return WorkerExited(worker=account.worker, code=account.code)
    if account.suspected is not None:
        cause, detail = account.suspected
        return WorkerSuspected(worker=account.worker, cause=cause, detail=detail)
    return None


def _broken(account: Account) -> Input | None:
    broken = CollectiveBroken(worker=account.worker, generation=account.broken, reason=BROKEN)
    return broken if account.broken else None


def _finished(account: Account) -> Input | None:
    return LoopFinished(worker=account.worker, generation=account.finished) if account.finished else None


BEFORE_FAILURES: Final = (_parked, _restored, _checkpointed)
FAILURES_AND_AFTER: Final = (_device_failed, _failed, _broken, _finished)
"""What the agents noted, as inputs in the order in which they mean something."""
