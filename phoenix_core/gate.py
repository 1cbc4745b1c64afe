"""A rank's small state is safe at its holder before any rank can need it.

Survivors of a DDP job cannot step back: once an optimizer has run, the earlier parameters are gone. So the small
state (random generators, data position, ...) that a dead rank would need at the next boundary must be
with its holder before *any* rank changes its parameters. No round trip is spent on that: the state is captured when the
first gradients are reduced, sent in the background, and the rank enters its later reductions only once the
holder has confirmed. That the last reduction ends on some rank then proves that all ranks are safe. A model
with a single bucket has no later reduction, and takes a barrier instead.
"""

from __future__ import annotations

import sys
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
        self._task = -1
        self._contributed = False
        self._payload = b""
        self._payload_boundary = -1
        self._told = False
        self._recorded_then: Mapping[str, Any] = {}

    def open(self, rank: int, generation: int, holder: tuple[str, int] | None, token: str) -> None:
        """A new generation: this rank's states go to `holder` (None in a world of one)."""
        self._rank, self._generation = rank, generation
        self._replicator.close()
        self._replicator = Replicator(rank, holder, token, self._inbox.notify)

    def begin_step(self, boundary: int, recorded: Mapping[str, Any]) -> None:
        """The step from `boundary` on begins; the script fills `recorded` while it lasts.

        What it drew (random numbers, data) since the gradients of the last step were ready is kept now.
        """
        small = self._protected.capture_small(self._recorded_then)
        if self._payload_boundary != boundary:
            self.keep(boundary, small)
        elif small != self._payload:
            self.keep(boundary, small)
            self._tell_once()
        self._boundary, self.recorded = boundary, recorded
        self._task, self._contributed = -1, False

    def before_collective(self) -> None:
        """Called before each collective. Those outside of a backward pass reduce no gradients."""
        task = torch._C._current_graph_task_id()
        if task == -1:
            return
        if task != self._task:
            # A second backward pass of the step (accumulation, two losses) drew random numbers and data of its own.
            if self._task == -1:
                self._at_gradient_sync()
            self._task, self._contributed = task, False
            self._capture()
        else:
            self.wait_safe(self._boundary + 1)
            self._contributed = True

    def before_optimizer(self, size: int) -> None:
        """Returns once every rank's small state of the coming boundary is safe."""
        if size == 1 or self._contributed:
            return
        if self._task == -1:
            self._capture()
        self.wait_safe(self._boundary + 1)
        dist.barrier()

    def restored(self, recorded: Mapping[str, Any]) -> None:
        """This rank was given a small state, with what was recorded of the step that led to it."""
        self.recorded = self._recorded_then = recorded

    def _tell_once(self) -> None:
        if not self._told:
            self._told = True
            print(
                "phoenix: this script draws random numbers or moves its data position after a step's gradients are "
                "ready. If a rank dies in the few milliseconds after, its replacement repeats those draws. Do it at "
                "the start of the step instead.",
                file=sys.stderr,
                flush=True,
            )

    def _capture(self) -> None:
        self._recorded_then = dict(self.recorded)
        self.keep(self._boundary + 1, self._protected.capture_small(self._recorded_then))

    def keep(self, boundary: int, payload: bytes) -> None:
        """Keep a small state here and send it to the holder, without waiting."""
        self._payload, self._payload_boundary = payload, boundary
        self.own.put(self._rank, boundary, payload)
        self._replicator.send(boundary, payload)

    def wait_safe(self, boundary: int) -> None:
        """Wait for the holder's word. Raises GenerationSuperseded where the holder is lost."""
        replicator = self._replicator
        if replicator.acked < boundary:
            self._inbox.wait(lambda: replicator.acked >= boundary or None, generation=self._generation)

    def close(self) -> None:
        self._replicator.close()
