"""A rank's small state is safe at its holder before any rank can need it.

Survivors of a DDP job cannot step back: once an optimizer has run, the earlier parameters are gone. So the small
state (random generators, data position, ...) that a dead rank would need at the next boundary must be
with its holder before *any* rank changes its parameters. No round trip is spent on that: the state is captured when the
first gradients are reduced, sent in the background, and the rank enters its later reductions only once the
holder has confirmed. That the last reduction ends on some rank then proves that all ranks are safe. A model
with a single bucket has no later reduction, and takes a barrier instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from phoenix_core import ddp, late
from phoenix_core.advice import LATE_DRAW, say_once
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
        self._ready: dict[int, bytes] = {}
        """Small states by boundary as they were when the gradients of the step before were ready."""

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
            if late.drew(self._payload, small):
                say_once(LATE_DRAW)
            self.keep(boundary, small)
        self._boundary = boundary

    def begin_step(self, recorded: Mapping[str, Any]) -> None:
        """The step begins; the script fills `recorded` while it lasts."""
        self.recorded = recorded
        self._task, self._contributed = -1, False
        self.stall_ns = self.waited_ns = 0

    def before_collective(self, name: str, *, everybody: bool) -> None:
        """Called before each collective, of the whole world or not; what counts are reductions of a backward pass."""
        task = torch._C._current_graph_task_id()
        if task == -1 or "reduce" not in name:
            return
        if task != self._task:
            # A second backward pass of the step (accumulation, two losses) drew random numbers and data of its own.
            if self._task == -1:
                self._on_phase("gradient_sync")
            self._task, self._contributed = task, False
            self._capture()
        elif self.by_reductions:
            self.wait_safe(self._needed())
            # What a part of the world reduces proves nothing of the others.
            self._contributed = self._contributed or everybody

    def before_optimizer(self, size: int) -> None:
        """Returns once every rank's small state of the coming boundary is safe."""
        if size == 1 or self._contributed:
            return
        if self._task == -1:
            self._capture()
        self.wait_safe(self._needed())
        with self._stalling():
            dist.barrier()

    def restored(self, recorded: Mapping[str, Any]) -> None:
        """This rank was given a small state, with what was recorded of the step that led to it."""
        self.recorded = self._recorded_then = recorded

    def _needed(self) -> int:
        """The boundary that must be safe before this step's optimizer may run."""
        return self._boundary + 1

    def _capture(self) -> None:
        self._recorded_then = dict(self.recorded)
        small, boundary = self._protected.capture_small(self._recorded_then), self._boundary + 1
        # A step later it may still be asked for: this rank is in the next one by the time that a failure is announced.
        self._ready = {**{b: kept for b, kept in self._ready.items() if b == boundary - 1}, boundary: small}
        self.keep(boundary, small)

    def changed_late(self, boundary: int) -> late.Changed | None:
        """What this rank, at rest at `boundary`, has changed of its small state since its gradients were ready."""
        ready = self._ready.get(boundary)
        if self.whole or ready is None or boundary not in self.own.boundaries().get(self._rank, ()):
            return None
        return late.changed(ready, self.own.get(self._rank, boundary))

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
        if replicator.acked < boundary:
            stalled_ns = self.stall_ns
            self.awaits = self._holder
            try:
                with self._stalling():
                    self._inbox.wait(lambda: replicator.acked >= boundary or None, generation=self._generation)
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
