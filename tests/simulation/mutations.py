"""Planted bugs, one per rule of the protocol: each takes one out of the production code or the simulated worker."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

import phoenix_core.membership
import phoenix_core.placement
import phoenix_core.reachability
import phoenix_core.watch
import tests.simulation.gates
from phoenix_core.coordinator import Coordinator
from phoenix_core.detection import keeps_others_waiting
from phoenix_core.kept import KeptStates
from phoenix_core.membership import Membership
from phoenix_core.placement import Offer, plan_restore
from phoenix_core.protocol import End, Kill, NodeLost, Release, SendPlan
from phoenix_core.roster import Phase, State
from phoenix_core.succession import Succession
from phoenix_core.watch import Seen, Watch
from phoenix_core.witness import Witness
from tests.simulation.cluster import SimulatedCoordinator
from tests.simulation.gates import Gate, ShardGate
from tests.simulation.worker import Worker


@dataclass(frozen=True)
class Mutation:
    rule: str
    mutation: str
    target: Any
    attribute: str
    replacement: Any

    @contextmanager
    def applied(self) -> Iterator[None]:
        with patch.object(self.target, self.attribute, self.replacement):
            yield


MUTATIONS: Final[list[Mutation]] = []
Code = Callable[..., Any]


def plant(rule: str, target: Any, attribute: str) -> Callable[[Code], Code]:
    """Register the decorated function, whose docstring says what it does wrong, in place of the original.

    It is given the original as its first argument.
    """

    def register(code: Code) -> Code:
        original = getattr(target, attribute)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            return code(original, *args, **kwargs)

        MUTATIONS.append(Mutation(rule, (code.__doc__ or "").rstrip("."), target, attribute, replacement))
        return code

    return register


# ------------------------------------------------------------------ generations and fencing


@plant("a new generation has a new number", Membership, "_form")
def _form_reuses_number(form: Code, self: Membership, filled: set[int], now: float) -> Any:
    """The second generation of a recovery takes the number of the first."""
    self.generation -= self.phase is Phase.RECOVERING and bool(self.joining)
    return form(self, filled, now)


@plant("a failed worker is fenced", Membership, "_failed")
def _failed_without_kill(failed: Code, *args: Any, **facts: Any) -> Any:
    """No Kill for a failed worker."""
    return [decision for decision in failed(*args, **facts) if not isinstance(decision, Kill)]


@plant("voices of an old generation are not heard", Membership, "_rank_in")
def _rank_in_any_generation(_: Code, self: Membership, worker: str, generation: int) -> Any:
    """The generation of a report is not looked at."""
    return self.ranks.index(worker) if worker in self.ranks and not self._vacant else None


@plant("a failure during a recovery leads to the next generation", Membership, "_failed")
def _failed_once_only(failed: Code, self: Membership, workers: Any, *rest: Any, **facts: Any) -> Any:
    """While a recovery goes on, a further failure of a rank is put off for ever."""
    busy = self.phase is Phase.RECOVERING and not self._vacant
    return [] if busy and any(worker in self.ranks for worker in workers) else failed(self, workers, *rest, **facts)


@plant("each vacancy gets a spare of its own", Membership, "_form")
def _form_with_one_spare(form: Code, self: Membership, filled: set[int], now: float) -> Any:
    """Two vacant ranks get the same spare."""
    if self.phase is Phase.RECOVERING:
        for rank in filled:
            self.ranks[rank] = self.ranks[min(filled)]
    return form(self, filled, now)


# ------------------------------------------------------------------ one coordinator after another


@plant("what is decided is written down before it is said", SimulatedCoordinator, "_note")
def _note_one_behind(note: Code, self: SimulatedCoordinator) -> Any:
    """The ledger is written only when the next decision is made."""
    last = getattr(self, "unwritten", None)
    self.unwritten = self.membership.ledger  # type: ignore[attr-defined]
    if last is not None:
        self.cluster.ledger = last


@plant("no worker is named twice", Succession, "_sit_down")
def _sit_down_and_count(sit_down: Code, self: Succession, *args: Any) -> Any:
    """A new coordinator counts the workers that it is told of, to name the next one."""
    sit_down(self, *args)
    self._spawned = len(self.members)


@plant("who has lost its rank is fenced by the next coordinator too", Succession, "_go_on")
def _go_on_without_kill(go_on: Code, *args: Any) -> Any:
    """No Kill for a worker whose rank another one has."""
    return [decision for decision in go_on(*args) if not isinstance(decision, Kill)]


@plant("a recovery that nobody leads any more begins anew", Succession, "_go_on")
def _go_on_as_it_was(go_on: Code, self: Succession, *args: Any) -> Any:
    """A new coordinator takes every job that has begun for one that trains."""
    decisions = go_on(self, *args)
    if self.phase is Phase.RECOVERING and not self._vacant:
        self.phase, self._resumed_at = Phase.RUNNING, 0
    return decisions


@plant("agents tell what they saw while nobody led", Witness, "said")
def _said_in_vain(said: Code, self: Witness, worker: str, message: Any) -> Any:
    """An agent does not keep that a process has ended or does not run."""
    return None if message["op"] in ("exited", "suspected") else said(self, worker, message)


# ------------------------------------------------------------------ the restore plan


@plant("the plan waits for the offer of every survivor", Membership, "_quiesced")
def _plan_at_first_offer(quiesced: Code, self: Membership, event: Any) -> Any:
    """The first offer is enough for a plan."""
    rank = self._rank_in(event.worker, event.generation)
    if rank in self._expected and event.offer.live is not None:
        self._expected = {rank}
    return quiesced(self, event)


@plant("offers of an old generation are forgotten", Membership, "_form")
def _form_keeps_offers(form: Code, self: Membership, filled: set[int], now: float) -> Any:
    """What ranks offered in the generation before still counts."""
    old = dict(self._offers)
    decisions = form(self, filled, now)
    self._offers = {**old, **self._offers}
    return decisions


@plant("a restore uses the greatest complete step", phoenix_core.membership, "plan_restore")
def _plan_least(_: Code, offers: Mapping[int, Offer], size: int) -> Any:
    """Survivors that are one step apart meet at the earlier step."""
    lives = [offer.live for offer in offers.values() if offer.live is not None]
    early = {rank: offer for rank, offer in offers.items() if offer.live == min(lives, default=None)}
    others = {rank: Offer(live=None, own=o.own, held=o.held) for rank, o in offers.items() if rank not in early}
    return plan_restore({**early, **others}, size)


@plant("a source has what it is asked for", phoenix_core.placement, "_small_source")
def _any_source(_: Code, rank: int, boundary: int, offers: Mapping[int, Offer], givers: object) -> Any:
    """The small state is asked of any survivor, not of one that offered it."""
    if rank in offers and boundary in offers[rank].own:
        return rank
    return next((other for other in sorted(offers, reverse=True) if other != rank), None)


@plant("no step is resumed at without everybody's small state", phoenix_core.placement, "_small_source")
def _hopeful_source(source: Code, rank: int, *rest: Any) -> Any:
    """A rank whose small state nobody has is taken to have it itself."""
    found = source(rank, *rest)
    return rank if found is None else found


@plant("each rank is told its own sources", Coordinator, "_send_plan")
def _plan_without_sources(send: Code, self: Coordinator, decision: SendPlan) -> Any:
    """The sources of rank 0 are left out."""
    sources = {rank: source for rank, source in decision.plan.sources.items() if rank != 0}
    bare = phoenix_core.placement.RestorePlan(boundary=decision.plan.boundary, sources=sources)
    return send(self, SendPlan(generation=decision.generation, plan=bare))


@plant("nobody resumes before all are restored", Membership, "_was_restored")
def _resume_early(restored: Code, self: Membership, event: Any, now: float) -> Any:
    """One rank is not waited for."""
    if self.phase is Phase.RECOVERING and self._plan is not None and len(self.ranks) - len(self._restored) == 2:
        self._restored = set(range(len(self.ranks))) - {self.ranks.index(event.worker)}
    return restored(self, event, now)


# ------------------------------------------------------------------ copies


@plant("the holder is on another node", tests.simulation.gates, "holder_of")
def _holder_on_same_node(holder: Code, rank: int, nodes: Any) -> Any:
    """The holder is on the rank's own node where that is possible."""
    here = [other for other, node in enumerate(nodes) if node == nodes[rank] and other != rank]
    return here[0] if here else holder(rank, nodes)


@plant("small states of neighbouring boundaries are kept", KeptStates, "put")
def _keep_newest(put: Code, self: KeptStates, owner: int, *rest: Any) -> Any:
    """Only the newest small state of an owner is kept."""
    self._kept.pop(owner, None)
    return put(self, owner, *rest)


@plant("small states are safe before anybody changes parameters", Gate, "wait_safe")
def _never_wait(wait: Code, self: Gate, boundary: int) -> Iterator[float]:
    """Within a step the holder's word is not waited for."""
    if self.worker.interruptible:
        yield from ()
    else:
        yield from wait(self, boundary)


@plant("a step can be left only while its state is whole", Worker, "_shield")
def _shield_late(shield: Code, self: Worker) -> Iterator[float]:
    """Between the mark that the state changes and the change itself a signal still interrupts."""
    self.live = None
    yield 0.01
    yield from shield(self)


@plant("survivors take their own small state back", Gate, "fetch")
def _keep_drawn(fetch: Code, self: Gate, call: Any, plan: Any) -> Generator[float, None, tuple[int, int]]:
    """A survivor goes on with the random state of the broken step."""
    small, tensors = yield from fetch(self, call, plan)
    return small if plan.tensors is not None else self.worker.small, tensors


@plant("a state is given up only for a whole one", Gate, "fetch")
def _fetch_in_place(fetch: Code, self: Gate, call: Any, plan: Any) -> Generator[float, None, tuple[int, int]]:
    """A survivor that is a step behind overwrites its state while it fetches."""
    if plan.tensors is not None:
        self.worker.live = self.worker.whole = None
    return (yield from fetch(self, call, plan))  # type: ignore[no-any-return]


@plant("a copy is finished before its tensors are overwritten", ShardGate, "settle")
def _overwrite(_: Code, self: ShardGate) -> Iterator[float]:
    """A rank is taken back while the thread that copies its tensors still reads them."""
    yield from ()


@plant("parameters change only once their copy is finished", ShardGate, "copied")
def _change_at_once(_: Code, self: ShardGate) -> Iterator[float]:
    """The optimizer does not wait for the copy of the tensors that it changes."""
    yield from ()


# ------------------------------------------------------------------ workers come and go


@plant("nothing starts on a lost node", Membership, "handle")
def _respawn_on_lost(handle: Code, self: Membership, event: Any, now: float) -> Any:
    """What was to be started on a node that is lost is started all the same."""
    kept = [node for node in self._to_respawn if isinstance(event, NodeLost) and node == event.node]
    decisions = handle(self, event, now)
    self._to_respawn += kept
    return decisions


@plant("a replacement that fails on its way is replaced", Membership, "_failed")
def _forget_replacement(failed: Code, self: Membership, workers: Any, *rest: Any, **facts: Any) -> Any:
    """The failure of a worker that a vacant rank waits for starts no other one."""
    vacant = set(self._vacant)
    if not any(worker in self.ranks for worker in workers):
        self._vacant = set()
    decisions = failed(self, workers, *rest, **facts)
    self._vacant |= vacant if self.phase is Phase.RECOVERING else set()
    return decisions


@plant("a worker that never starts is given up", Membership, "_tick")
def _wait_for_starters(tick: Code, self: Membership, now: float) -> Any:
    """A worker has for ever to start."""
    for member in self.members.values():
        if member.state is State.STARTING:
            member.changed_at = now
    return tick(self, now)


@plant("a crash loop is given up", Membership, "_reason_to_give_up")
def _never_give_up(reason: Code, self: Membership, *args: Any) -> Any:
    """Failures are not counted."""
    self._restarts.counts.clear()
    return reason(self, *args)


# ------------------------------------------------------------------ hangs


@plant("a rank that hangs is found by who waits for it", phoenix_core.watch, "keeps_others_waiting")
def _nobody_hangs(_: Code, *args: Any) -> Any:
    """Hangs with a beating heart are not looked for."""
    return []


@plant("who has met a broken connection is not taken for hung", phoenix_core.watch, "keeps_others_waiting")
def _broken_is_hung(_: Code, seen: Any, *args: Any) -> Any:
    """That a collective of a rank has ended with an error is not looked at."""
    deaf = {worker: (replace(progress, broken=False), since) for worker, (progress, since) in seen.items()}
    return keeps_others_waiting(deaf, *args)


@plant("those who are through wait for the others too", phoenix_core.watch, "keeps_others_waiting")
def _finished_do_not_count(_: Code, seen: Any, ranks: Any, now: float, pace: Any, finished: Any) -> Any:
    """A hang after the last collective is not looked for."""
    return keeps_others_waiting(seen, ranks, now, pace)


@plant("the network is asked before anybody is blamed", Watch, "training")
def _blame_unasked(training: Code, self: Watch, members: Any, ranks: Any, finished: Any, now: float) -> Any:
    """Who waits for the word of a holder that is cut off is taken for hung."""
    seen = {worker: (members[worker].progress, members[worker].changed_at) for worker in ranks}
    hung = keeps_others_waiting(seen, ranks, now, self.pace, finished)
    return Seen(hung=tuple(hung)) if hung else training(self, members, ranks, finished, now)


@plant("who is cut off is told from whom does not reach it", phoenix_core.reachability, "_parted")
def _believe_nobody(parted: Code, answers: Any, asked: Any) -> Any:
    """The broken pairs are put down to the first of all nodes."""
    first = min(asked)
    return frozenset(frozenset((first, node)) for pair in parted(answers, asked) for node in pair if node != first)


MUTATIONS.append(
    Mutation(
        "a recovery has a limit",
        "A rank has for ever to quiesce and to restore",
        phoenix_core.membership,
        "RECOVERY_LIMIT_S",
        1e9,
    )
)


@plant("who is waited for and is taken out is made up for", Membership, "_device_failed")
def _wait_for_the_fenced(device_failed: Code, self: Membership, event: Any, now: float) -> Any:
    """A node is quarantined on which nobody has a rank, and who waits for its workers goes on to wait."""
    if any(worker in self.members and self.members[worker].alive for worker in event.workers):
        return device_failed(self, event, now)
    return self._quarantine.struck(event, self.members, self._rank_of)[1]


@plant("nobody is blamed for what befell another", phoenix_core.membership, "late_in_recovery")
def _blame_all(_: Code, ranks: Any, expected: Any, offered: Any, restored: Any, __: object) -> Any:
    """All ranks that are not restored are blamed for the one that builds for ever."""
    waited_for = set(range(len(ranks))) if offered is None else expected - offered
    return [ranks[rank] for rank in sorted(waited_for - restored)]


@plant("spares that fail end only a job that needs one", Membership, "_failed")
def _end_by_spares(failed: Code, self: Membership, *arguments: Any, **facts: Any) -> Any:
    """Spares that fail again and again end the job, also where every rank trains."""
    decisions = failed(self, *arguments, **facts)
    if self._restarts.spares_fail and self.phase is Phase.RUNNING:
        return [*decisions, *self._end("failed", self._restarts.why_no_spare(self._last_failure))]
    return decisions


# ------------------------------------------------------------------ the end


@plant("all leave together", Membership, "_loop_finished")
def _release_at_first(finished: Code, self: Membership, event: Any) -> Any:
    """The first rank that is through releases all."""
    decisions = finished(self, event)
    if self.phase is Phase.RUNNING and self._finished and not decisions:
        self.phase = Phase.LEAVING
        return [Release()]
    return decisions


@plant("a job completes with its last rank", Membership, "_left")
def _complete_at_first(left: Code, self: Membership, member: Any, code: int) -> Any:
    """The first rank that ends well completes the job."""
    decisions = left(self, member, code)
    early = code == 0 and member.worker in self.ranks and not any(isinstance(d, End) for d in decisions)
    return self._end("completed", "a rank executed its last step") if early else decisions
