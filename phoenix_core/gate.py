"""A rank's small state is safe at its holder before any rank can need it.

Survivors of a DDP job cannot step back: once an optimizer has run, the earlier parameters are gone. So the small
state (random generators, data position, ...) that a dead rank would need at the next boundary must be
with its holder before *any* rank changes its parameters. No round trip is spent on that: the state is captured when the
first gradients are reduced, sent in the background, and the rank enters its later reductions only once the
holder has confirmed. That the last reduction ends on some rank then proves that all ranks are safe. A model
with a single bucket has no later reduction, and takes a barrier instead.

So does a job in which small states change after the first reduction (see late.py), on which its ranks agree in the
first step: theirs are captured before the optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from phoenix_core import ddp, late
from phoenix_core.advice import LATE_CHANGE, LATE_DRAW, say_once
from phoenix_core.bandwidth import Throttle, too_slow
from phoenix_core.inbox import Inbox
from phoenix_core.kept import KEPT_BOUNDARIES, KeptStates, Payload
from phoenix_core.placement import Offer, holder_of
from phoenix_core.replicator import Replicator
from phoenix_core.snapshot import Protected


class Gate:
    """The small states of one rank. `on_phase` is told of training phases that only this sees."""

    whole = False
    """Whether what is kept is the whole state of a rank (see shards.py)."""
    twins: frozenset[int] = frozenset()
    """The other ranks whose tensors are those of this one, where that matters (see shards.py)."""
    by_reductions = True
    """Whether the later reductions of a step wait for the holder, which spares the barrier."""
    kept = KEPT_BOUNDARIES
    """Boundaries that are kept, here and at the holder."""

    def __init__(self, protected: Protected, inbox: Inbox, on_phase: Callable[[str], None], throttle: Throttle) -> None:
        self._protected = protected
        self._inbox = inbox
        self._on_phase = on_phase
        self.own = KeptStates()
        self.stall_ns = 0
        self.waited_ns = 0
        self.copied = self.sent = 0
        """Bytes of the last whole state that was copied, and of the last state that was sent."""
        self._throttle, self._told = throttle, False
        self.recorded: Mapping[str, Any] = {}
        self._rank, self._generation = 0, 0
        self._holder: int | None = None
        self.awaits: int | None = None
        """The rank whose word, as the holder, is waited for at this moment."""
        self._replicator = self._replicator_to(None, "")
        self._boundary = 0
        self._task = -1
        self._contributed = False
        self._payload: Payload = b""
        self._payload_boundary = -1
        self._recorded_then: Mapping[str, Any] = {}
        self._early: dict[int, tuple[bytes, ...]] = {}
        """Small states by boundary as they were sent before the optimizer of the step before."""
        self.late: bool | None = None
        """Whether they are captured before the optimizer alone; None until the ranks have agreed. As of the step's
        beginning: a step that breaks is begun again without what was agreed in it."""
        self.left: int | None = None
        """The boundary at which the script has left its loop, or a twin's has; None while it goes on."""
        self._agreed: bool | None = None
        self._again = False
        """Whether this rank has changed it after the first reduction without that it was agreed on: before the
        optimizer or after, which one capture more tells in the next step."""
        self._watch = late.Watch()

    def open(
        self, rank: int, generation: int, holder: int | None, peers: Sequence[tuple[str, int]], token: str
    ) -> None:
        """A new generation: this rank's states go to the rank `holder` (None in a world of one), of `peers[holder]`."""
        self._rank, self._generation, self._holder = rank, generation, holder
        self._replicator.close()
        self._replicator = self._replicator_to(None if holder is None else peers[holder], token)

    def _replicator_to(self, holder: tuple[str, int] | None, token: str) -> Replicator:
        notify = self._inbox.notify
        return Replicator(self._rank, holder, token, notify, self.kept, self._throttle, self._differing)

    def offer(
        self, rank: int, live: int | None, held: Mapping[int, tuple[int, ...]], bare: Mapping[int, tuple[int, ...]]
    ) -> Offer:
        """What `rank`, this one, can give with its live state at `live`; `held` and `bare` as in Offer."""
        own, twins = self.own.boundaries().get(rank, ()), tuple(sorted(self.twins))
        return Offer(live=live, own=own, whole=self.whole, held=held, bare=bare, twins=twins)

    def holder(self, rank: int, nodes: Sequence[str]) -> int | None:
        """The rank that keeps the states of `rank`, this one; None in a world of one. `nodes[r]` is that of rank r."""
        return holder_of(rank, nodes)

    def _differing(self, boundary: int) -> None:
        """Called by the replicator: the holder turned out to have other tensors than this rank."""
        raise AssertionError(f"the small state of step {boundary} has no tensors")

    def begin_loop(self, boundary: int) -> None:
        """Make `boundary`, where the job begins, safe before the first step."""
        self.keep(boundary, self._protected.capture_small({}))
        self.wait_safe(boundary)

    def arrive(self, boundary: int) -> None:
        """The loop comes to the step from `boundary` on.

        What it drew (random numbers, data) since the gradients of the last step were ready is kept now.
        """
        small = self._protected.capture_small(self._recorded_then)
        if self._payload_boundary != boundary:
            self.keep(boundary, small)
        elif small != self._payload:
            self._again = True
            if late.drew(self._payload, small):
                say_once(LATE_DRAW)
            self.keep(boundary, small)
        self._boundary = boundary

    def begin_step(self, recorded: Mapping[str, Any]) -> None:
        """The step begins; the script fills `recorded` while it lasts."""
        self.recorded = recorded
        self._task, self._contributed = -1, False
        self._agreed, self._watch = self.late, late.Watch()
        self.stall_ns = self.waited_ns = 0

    def enter_backward(self) -> None:
        """A backward pass comes out of a protected module."""
        if self._is_to_agree():
            self._watch.see(torch._C._current_graph_task_id(), self._protected.capture_small({}))

    def before_collective(self, name: str, *, everybody: bool) -> None:
        """Called before each collective, of the whole world or not; what counts are reductions of a backward pass."""
        task = torch._C._current_graph_task_id()
        if task == -1 or "reduce" not in name:
            return
        self.enter_backward()
        if task != self._task:
            # A second backward pass of the step (accumulation, two losses) drew random numbers and data of its own.
            if self._task == -1:
                self._on_phase("gradient_sync")
            self._task, self._contributed = task, False
            if not self.late:
                self._capture()
        elif self.by_reductions and not self.late:
            self.wait_safe(self._needed())
            # What a part of the world reduces proves nothing of the others.
            self._contributed = self._contributed or everybody

    def before_optimizer(self, size: int) -> None:
        """Returns once every rank's small state of the coming boundary is safe."""
        if size == 1:
            return
        if self.late or self._task == -1:
            self._capture()
        elif self._again or self._is_to_agree():
            self._capture_again()
        self.wait_safe(self._needed())
        with self._stalling():
            if self._is_to_agree():
                self._agree()
            elif not self._contributed:
                dist.barrier()

    def _is_to_agree(self) -> bool:
        return self.late is None and not self.whole and self._holder is not None

    def _agree(self) -> None:
        """All ranks learn whether any has to capture before the optimizer. Serves as the barrier of this step."""
        vote = torch.tensor(self._watch.vote(self._protected.capture_small({})), device="cpu")
        dist.all_reduce(vote, dist.ReduceOp.MAX)
        self._agreed = late.agreed(int(vote))

    def restored(self, recorded: Mapping[str, Any]) -> None:
        """This rank was given a small state, with what was recorded of the step that led to it."""
        self.recorded = self._recorded_then = recorded

    def _needed(self) -> int:
        """The boundary that must be safe before this step's optimizer may run."""
        return self._boundary + 1

    def _capture(self) -> None:
        self._recorded_then = dict(self.recorded)
        boundary = self._boundary + 1
        # A step later it may still be asked for: this rank is in the next one by the time that a failure is announced.
        self._early = {b: sent for b, sent in self._early.items() if b == boundary - 1}
        self._keep_early(boundary, self._protected.capture_small(self._recorded_then))

    def _capture_again(self) -> None:
        """Before the optimizer: for what has changed since the first reduction."""
        small, boundary = self._protected.capture_small(self._recorded_then), self._boundary + 1
        self._again = small != self._payload
        if self._again:
            if not self._is_to_agree():
                say_once(LATE_CHANGE)
            self._keep_early(boundary, small)

    def _keep_early(self, boundary: int, small: bytes) -> None:
        self._early[boundary] = (*self._early.get(boundary, ()), small)
        self.keep(boundary, small)

    def told(self, boundary: int) -> late.Told:
        """What a replacement must know of this rank, at rest at `boundary`, besides what it holds."""
        early = self._early.get(boundary)
        if self.whole or early is None or boundary not in self.own.boundaries().get(self._rank, ()):
            return late.Told(self.late, left=self.left)
        return late.Told(self.late, late.changed(early, self.own.get(self._rank, boundary)), self.left)

    def hear(self, told: late.Told, *, disk: bool) -> None:
        """What was told with the state that this rank has been given, or keeps; `disk`: all begin from there."""
        self.late, self.left = None if disk else told.late, told.left

    def keep(self, boundary: int, payload: Payload) -> None:
        """Keep a small state here and send it to the holder, without waiting."""
        self._payload, self._payload_boundary = payload, boundary
        sum_ = self.own.put(self._rank, boundary, payload, self.kept)
        self.sent = len(payload)
        self._replicator.send(boundary, payload, sum_)

    def settle(self) -> None:
        """Return once nothing reads the live state any more: a recovery is about to write it."""

    def put_back(
        self, boundary: int, layouts: list[ddp.Layout], start: bytes, kept: Payload | None
    ) -> tuple[list[ddp.Layout], bytes, bytes]:
        """This rank resumes at `boundary` with `kept`: the buckets of its next step, what that begins with, and the
        small state."""
        assert kept is not None
        return layouts, start, bytes(kept)

    def make_safe(self, boundary: int, kept: Payload | None) -> None:
        """Give the (new) holder the state that this rank resumes with."""
        assert kept is not None
        self.keep(boundary, kept)
        self.wait_safe(boundary)

    def wait_safe(self, boundary: int) -> None:
        """Wait for the holder's word. Raises GenerationSuperseded where the holder is lost."""
        replicator = self._replicator
        if not replicator.safe(boundary):
            stalled_ns = self.stall_ns
            self.awaits = self._holder
            try:
                with self._stalling():
                    self._inbox.wait(lambda: replicator.safe(boundary) or None, generation=self._generation)
            finally:
                self.awaits = None
            self.waited_ns += self.stall_ns - stalled_ns

    @contextmanager
    def _stalling(self) -> Iterator[None]:
        """What is done here keeps training waiting."""
        began = time.monotonic_ns()
        yield
        self.stall_ns += time.monotonic_ns() - began

    def committed(self, duration_ns: int) -> dict[str, int]:
        """A step ended after `duration_ns`: fields of its event. Where the bandwidth's limit was in its way, that is
        said once."""
        self.late = self._agreed
        rate = self._throttle.rate
        if rate is not None and not self._told:
            told = too_slow(rate, self.sent, duration_ns / 1e9, self.waited_ns / 1e9)
            if told is not None:
                self._told = True
                say_once(told)
        if not self.whole:
            return {}
        return {"stall_ns": self.stall_ns, "copied_bytes": self.copied, "sent_bytes": self.sent}

    def resumed(self, boundary: int, held: Sequence[KeptStates], nodes: Sequence[str]) -> None:
        """All ranks go on from `boundary`: what later steps or ranks that moved away have left here is not needed."""
        for states in held:
            states.keep_only(self._owners(nodes))

    def _owners(self, nodes: Sequence[str]) -> list[int]:
        """The ranks whose states this one may hold."""
        return [owner for owner in range(len(nodes)) if holder_of(owner, nodes) == self._rank]

    def close(self) -> None:
        self._replicator.close()
