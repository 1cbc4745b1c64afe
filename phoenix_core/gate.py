"""A rank's small state is safe at its holder before any rank can need it.

Survivors of a DDP job cannot step back: once an optimizer has run, the earlier parameters are gone. So the small
state (random generators, data position, ...) that a dead rank would need at the next boundary must be
with its holder before *any* rank changes its parameters. No round trip is spent on that: the state is captured when the
first gradients are reduced, sent in the background, and the rank enters its later reductions only once the
holder has confirmed. That the last reduction ends on some rank then proves that all ranks are safe. A model
with a single bucket has no later reduction, and takes a barrier instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from phoenix_core.inbox import Inbox
from phoenix_core.replicator import Replicator
from phoenix_core.snapshot import Protected
from phoenix_core.transport import SmallStates


class Gate:
    """The small states of one rank. `at_gradient_sync` is called when a step's first gradients are reduced."""

    def __init__(self, protected: Protected, inbox: Inbox, at_gradient_sync: Callable[[], None]) -> None:
        self._protected = protected
        self._inbox = inbox
        self._at_gradient_sync = at_gradient_sync
        self.own = SmallStates()
        self.recorded: Mapping[str, Any] = {}
        self._rank, self._generation = 0, 0
        self._replicator = Replicator(0, None, "", lambda: None)
        self._boundary = 0
        self._captured = self._contributed = False
        self._payload = b""
        self._recorded_then: Mapping[str, Any] = {}

    def open(self, rank: int, generation: int, holder: tuple[str, int] | None, token: str) -> None:
        """A new generation: this rank's states go to `holder` (None in a world of one)."""
        self._rank, self._generation = rank, generation
        self._replicator.close()
        self._replicator = Replicator(rank, holder, token, self._inbox.notify)

    def begin_step(self, boundary: int, recorded: Mapping[str, Any]) -> None:
        """The step from `boundary` on begins; the script fills `recorded` while it lasts."""
        self._boundary, self.recorded = boundary, recorded
        self._captured = self._contributed = False

    def before_collective(self) -> None:
        """Called before each collective. Those outside of a backward pass reduce no gradients."""
        if torch._C._current_graph_task_id() == -1:
            return
        if not self._captured:
            self._capture()
            self._at_gradient_sync()
        else:
            self.wait_safe(self._boundary + 1)
            self._contributed = True

    def before_optimizer(self, size: int) -> None:
        """Returns once every rank's small state of the coming boundary is safe."""
        if size == 1 or self._contributed:
            return
        if not self._captured:
            self._capture()
        self.wait_safe(self._boundary + 1)
        dist.barrier()

    def commit(self) -> None:
        """The step is over: keep what the script drew (random numbers, data) after its gradients were ready."""
        if self._captured and (small := self._protected.capture_small(self._recorded_then)) != self._payload:
            self.keep(self._boundary + 1, small)

    def _capture(self) -> None:
        self._captured = True
        self._recorded_then = dict(self.recorded)
        self._payload = self._protected.capture_small(self._recorded_then)
        self.keep(self._boundary + 1, self._payload)

    def keep(self, boundary: int, payload: bytes) -> None:
        """Keep a small state here and send it to the holder, without waiting."""
        self.own.put(self._rank, boundary, payload)
        self._replicator.send(boundary, payload)

    def wait_safe(self, boundary: int) -> None:
        """Wait for the holder's word. Raises GenerationSuperseded where the holder is lost."""
        replicator = self._replicator
        if replicator.acked < boundary:
            self._inbox.wait(lambda: replicator.acked >= boundary or None, generation=self._generation)

    def close(self) -> None:
        self._replicator.close()
