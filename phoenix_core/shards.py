"""Snapshots of ranks whose state has no live twin: sharded parameters and their optimizer state.

A step from boundary b first copies the whole state of b into an own slot and sends it to the holder, during the
forward and backward pass, in which parameters do not change. The rank enters its later gradient reductions only once
the holder has verified it (see gate.py), so when any optimizer runs, b is safe everywhere; the slot of b-1 is
overwritten only after that. A failure takes every rank back to the latest safe boundary.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from phoenix_core import ddp
from phoenix_core.bandwidth import Throttle
from phoenix_core.copier import Copier, copier_for
from phoenix_core.gate import Gate
from phoenix_core.inbox import Inbox
from phoenix_core.kept import Payload
from phoenix_core.packing import fill, flat_bytes
from phoenix_core.snapshot import Key, Protected

BESIDE_TRAINING = ("snapshot_copy", "replica_send")
"""Phases that run beside those of the training thread."""


class ShardGate(Gate):
    """As Gate, with whole states at the step's beginning in place of small ones at its end."""

    whole = True
    kept = 2

    def __init__(
        self,
        protected: Protected,
        inbox: Inbox,
        on_phase: Callable[[str], None],
        throttle: Throttle,
        buckets: ddp.Buckets,
    ) -> None:
        super().__init__(protected, inbox, on_phase, throttle)
        self._buckets = buckets
        self._copied = threading.Event()
        self._copied.set()
        self._copier: Copier | None = None
        self._failed: BaseException | None = None

    def begin_loop(self, boundary: int) -> None:
        self.snapshot(boundary, recorded={})
        self.wait_safe(boundary)

    def arrive(self, boundary: int) -> None:
        self._boundary = boundary
        # While DDP has still to move to the buckets of its second step nobody could resume with them; a failure takes
        # everybody back to the boundary before.
        if self._payload_boundary != boundary and (boundary == 0 or self._buckets.settled() is not None):
            self.snapshot(boundary, recorded={})

    def snapshot(self, boundary: int, recorded: Mapping[str, Any]) -> None:
        """Begin to copy the live state, which is that of `boundary`, and to send it to the holder."""
        self._wait_copied()
        listed = list(self._protected.tensors())
        head = pickle.dumps(
            {
                "small": self._protected.capture_small(recorded),
                "start": self._protected.capture_start(),
                "layouts": self._buckets.now(),
                "tensors": [(key, tensor.dtype, tuple(tensor.shape)) for key, tensor in listed],
            }
        )
        parts = [flat_bytes(tensor) for _, tensor in listed if tensor.numel()]
        self._payload_boundary = boundary
        self._copier = self._copier or copier_for(parts)
        work = (boundary, head, parts, self._copier, self._copier.mark())
        self._copied.clear()
        threading.Thread(target=self._copy, args=work, name="phoenix-snapshot", daemon=True).start()

    def settle(self) -> None:
        self._copied.wait()

    def _wait_copied(self) -> None:
        """Raises what the copying raised, such as an error of the device: this is the rank's own."""
        self._copied.wait()
        if self._failed is not None:
            raise self._failed

    def put_back(
        self, boundary: int, layouts: list[ddp.Layout], start: bytes, kept: Payload | None
    ) -> tuple[list[ddp.Layout], bytes, bytes]:
        """`kept` None: the live tensors are those of `boundary` already."""
        state = None
        if kept is not None:
            state = load(self._protected, kept)
        elif boundary in self.own.boundaries().get(self._rank, ()):
            state = parse(self.own.get(self._rank, boundary))
        if state is not None:
            return state.layouts, state.start, state.small
        return layouts, start, self._protected.capture_small({})

    def make_safe(self, boundary: int, kept: Payload | None) -> None:
        if kept is None and boundary in self.own.boundaries().get(self._rank, ()):
            kept = self.own.get(self._rank, boundary)
        if kept is None:
            self.snapshot(boundary, recorded={})
        else:
            self.keep(boundary, kept)
        self.wait_safe(boundary)

    def _copy(self, boundary: int, head: bytes, parts: list[torch.Tensor], copier: Copier, mark: object) -> None:
        try:
            self._fill_slot(boundary, head, parts, copier, mark)
        except BaseException as error:
            self._failed = error
        finally:
            self._copied.set()

    def _fill_slot(self, boundary: int, head: bytes, parts: list[torch.Tensor], copier: Copier, mark: object) -> None:
        self._on_phase("snapshot_copy")
        prefix = len(head).to_bytes(8, "little") + head
        prefix += b"\0" * (-len(prefix) % 64)
        size = len(prefix) + sum(part.numel() for part in parts)
        room = self.own.room(self._rank, boundary, size, self.kept)
        copier.pin(room)
        slot = torch.frombuffer(room, dtype=torch.uint8)
        slot[: len(prefix)].copy_(torch.frombuffer(bytearray(prefix), dtype=torch.uint8))
        copier.copy(parts, slot[len(prefix) :], mark)
        self.copied = size
        self._on_phase("replica_send")
        self.keep(boundary, room)

    def _capture(self) -> None:
        """Nothing: what a failure in this step needs was captured at its beginning."""

    def _needed(self) -> int:
        return self._payload_boundary

    def before_optimizer(self, size: int) -> None:
        with self._stalling():
            self._wait_copied()
        super().before_optimizer(size)


@dataclass(frozen=True, kw_only=True)
class WholeState:
    """A payload's parts: small state, what a step begins with, buckets, list of tensors, their bytes in a row."""

    small: bytes
    start: bytes
    layouts: list[ddp.Layout]
    tensors: list[tuple[Key, torch.dtype, tuple[int, ...]]]
    data: memoryview


def parse(payload: Payload) -> WholeState:
    view = memoryview(payload)
    length = int.from_bytes(view[:8], "little")
    head = pickle.loads(view[8 : 8 + length])
    begin = 8 + length + (-(8 + length) % 64)
    return WholeState(**head, data=view[begin:])


def load(protected: Protected, payload: Payload) -> WholeState:
    """Put a whole state back into the live tensors."""
    state = parse(payload)
    fill(protected.targets_for(state.tensors), state.data)
    return state
