"""The membership of a coordinator that was started anew: made from the ledger and from what the agents tell. Pure.

The ledger says what was decided, the agents what has come of it; training went on meanwhile. Where every rank was told
to resume the generation that was decided last, the new membership is that of the old coordinator and nobody notices.
Anything in between, a recovery at whatever point, is superseded: the next generation begins, from what the ranks
have then. What the agents saw fail, while nobody listened, is handled as if it were reported now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from phoenix_core.ledger import Ledger
from phoenix_core.membership import Membership
from phoenix_core.ondisk import OnDisk
from phoenix_core.pace import Boundaries
from phoenix_core.placement import RestorePlan
from phoenix_core.protocol import (
    Alert,
    Announce,
    CheckpointWritten,
    Decision,
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
UNSEEN: Final = "it ended while there was no coordinator"


class Succession(Membership):
    """A membership that can be handed on: `ledger` is what the next coordinator must be given of it."""

    def __init__(self, job: Job, found: Ledger) -> None:
        """`found` is the ledger of the coordinator before; empty for the first one, which calls `start`."""
        super().__init__(job)
        self.lost_nodes = list(found.lost_nodes)
        self._found = found
        self._ended = found.ended

    @property
    def ledger(self) -> Ledger:
        return Ledger(
            generation=self.generation,
            spawned=self._spawned,
            seats=tuple((worker, self.members[worker].node) for worker in self.ranks),
            lost_nodes=tuple(self.lost_nodes),
            failures=dict(self._restarts.counts),
            furthest=self._restarts.furthest,
            on_disk=self._on_disk.boundary,
            ended=self._ended,
        )

    def handle(self, event: Input, now: float) -> list[Decision]:
        if isinstance(event, NodeLost):
            self.lost_nodes.append(event.node)
        return super().handle(event, now)

    def _end(self, outcome: str, reason: str) -> list[Decision]:
        self._ended = (outcome, reason)
        return super()._end(outcome, reason)

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
        if found.generation:
            self._sit_down(told, accounts, now)
            decisions = self._go_on(accounts)
        else:
            decisions = [spawn for spawn in self.start() if isinstance(spawn, Spawn) and spawn.worker not in accounts]
        recovering = self.phase is Phase.RECOVERING
        alive = [self.members[worker] for worker, account in accounts.items() if self._lives(account)]
        fields = {
            "generation": found.generation + recovering,
            "recovering": recovering,
            "ranks": sum(member.worker in self._rank_of for member in alive),
            "spares": sum(member.worker not in self._rank_of for member in alive),
        }
        decisions.insert(0, Record(kind="coordinator_restarted", fields=fields))
        for node in dict.fromkeys((*self.job.rank_nodes, *self.job.spare_nodes)):
            if node not in told and node not in self.lost_nodes:
                decisions += self.handle(NodeLost(node=node, detail=NEVER_CAME), now)
        if found.generation and self.phase is not Phase.ENDED:
            unseen = [w for w, node in found.seats if w not in accounts and node in told and w in self._rank_of]
            decisions += self._failed(unseen, "exit", UNSEEN, now)
        for event_of in REPLAYED:
            for account in accounts.values():
                if (event := event_of(account)) is not None:
                    decisions += self.handle(event, now)
        return decisions + self._next_generation(decisions, now)

    def _lives(self, account: Account) -> bool:
        return account.code is None and account.worker in self.members and self.members[account.worker].alive

    def _sit_down(self, told: Mapping[str, Sequence[Account]], accounts: Mapping[str, Account], now: float) -> None:
        """Everybody takes the place that was decided, as if nobody had failed since."""
        found = self._found
        self.generation, self._spawned = found.generation, found.spawned
        self.ranks = [worker for worker, _ in found.seats]
        self._rank_of = {worker: rank for rank, worker in enumerate(self.ranks)}
        for worker, node in found.seats:
            self.members[worker] = Member(worker=worker, node=node, state=State.ACTIVE, changed_at=now)
        for node, theirs in told.items():
            for account in theirs:
                self._place(account, node, now)
        for node in told:
            slots = (*self.job.rank_nodes, *self.job.spare_nodes).count(node)
            there = sum(member.node == node and member.alive for member in self.members.values())
            self._to_respawn += [node] * (slots - there)
        # Who has never been told of its rank is still a spare, and as good as any other one.
        for rank, worker in enumerate(self.ranks):
            known = accounts.get(worker)
            if known is not None and known.told == 0 and known.code is None and found.generation > 1:
                del self._rank_of[worker]
                self._vacant.add(rank)
                self.members[worker].state = State.PARKED

    def _place(self, account: Account, node: str, now: float) -> None:
        seated = account.worker in self._rank_of
        if account.code is not None and not seated:
            return
        if seated:
            state = State.ACTIVE
        elif account.told:
            state = State.FAILED  # it had a rank, and another one was given it: it may not have heard that
        else:
            state = State.STARTING if account.address is None else State.PARKED
        member = Member(worker=account.worker, node=node, state=state, address=account.address, changed_at=now)
        member.error = account.error
        if account.progress:
            member.progress = Progress.from_json(account.progress)
        self.members[account.worker] = member

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
            self._boundaries = Boundaries(reached)
            self._resumed_at = min(reached)
            self._restarts.reached(min(reached))
            return decisions
        if self.generation == 1 and all(account.announced <= 1 for account in seated):
            # It has no state yet that a recovery could save: whoever has not heard of it hears it now.
            self.phase = Phase.BUILDING
            self._plan = RestorePlan(boundary=self.job.begins_at, sources={})
            return [*decisions, Announce(world=self.world, joining=(), fresh=True, boundary=self.job.begins_at)]
        self.phase = Phase.RECOVERING
        self.joining = {self._rank_of[account.worker] for account in seated if account.resumed == 0}
        return decisions

    def _next_generation(self, decided: Sequence[Decision], now: float) -> list[Decision]:
        """Where a recovery was broken off and no failure has begun another one meanwhile."""
        waits = any(isinstance(decision, Alert) for decision in decided)
        if self.phase is not Phase.RECOVERING or self.generation > self._found.generation or waits:
            return []
        return self._fill_vacancies(now) if self._vacant else self._form(set(), now)


def _parked(account: Account) -> Input | None:
    return WorkerParked(worker=account.worker, address=account.address) if account.address is not None else None


def _restored(account: Account) -> Input | None:
    return Restored(worker=account.worker, generation=account.restored) if account.restored else None


def _checkpointed(account: Account) -> Input | None:
    return CheckpointWritten(worker=account.worker, boundary=account.checkpointed) if account.checkpointed else None


def _failed(account: Account) -> Input | None:
    if account.code is not None:
        return WorkerExited(worker=account.worker, code=account.code)
    if account.suspected is not None:
        cause, detail = account.suspected
        return WorkerSuspected(worker=account.worker, cause=cause, detail=detail)
    return None


def _finished(account: Account) -> Input | None:
    return LoopFinished(worker=account.worker, generation=account.finished) if account.finished else None


REPLAYED: Final[tuple[Callable[[Account], Input | None], ...]] = (
    _parked, _restored, _checkpointed, _failed, _finished,
)  # fmt: skip
"""What the agents noted, as inputs in the order in which they mean something."""
