"""Snapshots of ranks that have state which not all others have: sharded parameters and their optimizer state.

A step from boundary b first copies the whole state of b into an own slot and sends it to the holder, during the
forward and backward pass, in which parameters do not change. The rank enters its later gradient reductions only once
the holder has verified it (see gate.py), so when any optimizer runs, b is safe everywhere; the slot of b-1 is
overwritten only after that. A failure takes every rank back to the latest safe boundary. Where a twin on another node
has the same tensors (see twins.py) that one is the holder, and the tensors are not sent.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from phoenix_core import ddp, wholestate
from phoenix_core.advice import TWINS_DIFFER, say_once
from phoenix_core.bandwidth import Throttle
from phoenix_core.copier import Copier, copier_for
from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.exchange import Exchange
from phoenix_core.gate import Gate
from phoenix_core.inbox import Inbox
from phoenix_core.kept import KeptStates, Payload, checksum
from phoenix_core.packing import flat_bytes
from phoenix_core.placement import holder_of
from phoenix_core.snapshot import Protected
from phoenix_core.twins import holder_among

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
        exchange: Exchange,
    ) -> None:
        """By `exchange` twins ask for the tensors of this rank's own snapshots, and for sums over them."""
        super().__init__(protected, inbox, on_phase, throttle)
        self._buckets = buckets
        self._sums = exchange.sums
        exchange.tensors_at = self._tensors_at
        self.twins: frozenset[int] = frozenset()
        self._covered = self._differs = False
        self._copied = threading.Event()
        self._copied.set()
        self._copier: Copier | None = None
        self._failed: BaseException | None = None

    def begin_loop(self, boundary: int) -> None:
        self.snapshot(boundary, recorded={})
        self.wait_safe(boundary)

    def arrive(self, boundary: int) -> None:
        self._boundary = boundary
        # While DDP has still to move to the buckets of a module's second step nobody could resume with them; a failure
        # takes everybody back to the boundary before.
        if self._payload_boundary == boundary:
            return
        if not self._buckets.moving:
            self.snapshot(boundary, recorded={})
        else:
            self._sums.tell(boundary, "")

    def snapshot(self, boundary: int, recorded: Mapping[str, Any]) -> None:
        """Begin to copy the live state, which is that of `boundary`, and to send it to the holder."""
        self._wait_copied()
        listed = list(self._protected.tensors())
        head = wholestate.Head(
            small=self._protected.capture_small(recorded),
            start=self._protected.capture_start(),
            layouts=self._buckets.now(),
            tensors=[(key, tensor.dtype, tuple(tensor.shape)) for key, tensor in listed],
        ).packed()
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

    def resumed(self, boundary: int, held: Sequence[KeptStates], nodes: Sequence[str]) -> None:
        super().resumed(boundary, held, nodes)
        # Nobody has sent a later one meanwhile: that would need this rank in a collective of the step between. (Small
        # states are sent within that step, so theirs must stay.)
        self._sums.forget_after(boundary)
        for states in (self.own, *held):
            states.forget_after(boundary)

    def put_back(
        self, boundary: int, layouts: list[ddp.Layout], start: bytes, kept: Payload | None
    ) -> tuple[list[ddp.Layout], bytes, bytes]:
        """`kept` None: the live tensors are those of `boundary` already."""
        head = None
        if kept is not None:
            head = wholestate.load(self._protected, kept)
        elif boundary in self.own.boundaries().get(self._rank, ()):
            head = wholestate.parse(self.own.get(self._rank, boundary)).head
        if head is not None:
            return head.layouts, head.start, head.small
        return layouts, start, self._protected.capture_small({})

    def make_safe(self, boundary: int, kept: Payload | None) -> None:
        if kept is None and boundary in self.own.boundaries().get(self._rank, ()):
            kept = self.own.get(self._rank, boundary)
        if kept is None or not wholestate.parse(kept).head.complete:
            self.snapshot(boundary, recorded={})
        else:
            self.keep(boundary, kept)
        self.wait_safe(boundary)

    # ---------------------------------------------------------------- twins

    def holder(self, rank: int, nodes: Sequence[str]) -> int | None:
        """A twin on another node where there is one, which then is sent no tensors."""
        self.twins = self._protected.twins(rank)
        twin = holder_among(rank, self.twins, nodes)
        self._covered = twin is not None
        # A twin confirms once its own snapshot is complete, and it may be late for this step. Who waits for it must be
        # seen to do so, in a collective with it: after the last of those it is there.
        self.by_reductions = not self._covered
        return holder_of(rank, nodes) if twin is None else twin

    def _owners(self, nodes: Sequence[str]) -> list[int]:
        alike = {self._rank, *self.twins}
        from_twins = [twin for twin in self.twins if holder_among(twin, alike - {twin}, nodes) == self._rank]
        return [*super()._owners(nodes), *from_twins]

    def keep(self, boundary: int, payload: Payload) -> None:
        if not self.twins:
            super().keep(boundary, payload)
            self._sums.tell(boundary, "")
            return
        self._payload, self._payload_boundary = payload, boundary
        sum_ = self.own.put(self._rank, boundary, payload, self.kept)
        bare, shared = wholestate.bare(payload)
        self._sums.tell(boundary, shared)
        if self._covered and not self._differs:
            self.sent = len(bare)
            self._replicator.send(boundary, bare, checksum(bare), shared)
        else:
            self.sent = len(payload)
            self._replicator.send(boundary, payload, sum_)

    def _differing(self, boundary: int) -> None:
        say_once(TWINS_DIFFER)
        self._differs = True
        payload = self.own.get(self._rank, boundary)
        self.sent = len(payload)
        self._replicator.send(boundary, payload, checksum(payload))

    def _tensors_at(self, boundary: int, sum_: str) -> tuple[bytes, memoryview]:
        """For a twin that is being replaced: the tensors of the own slot of `boundary`, pickled names and bytes.

        Raises SnapshotUnavailable where there are none, or none with the sum `sum_`. Called by threads of the server.
        """
        state = wholestate.parse(self.own.get(self._rank, boundary))
        if checksum(state.data) != sum_:
            self.own.forget(self._rank, boundary)
            raise SnapshotUnavailable(f"the tensors of rank {self._rank} at step {boundary} are not those of its twin")
        return pickle.dumps(state.head.tensors), state.data

    # ---------------------------------------------------------------- the copy

    def _copy(self, boundary: int, head: bytes, parts: list[torch.Tensor], copier: Copier, mark: object) -> None:
        try:
            self._fill_slot(boundary, head, parts, copier, mark)
        except BaseException as error:
            self._failed = error
        finally:
            self._copied.set()

    def _fill_slot(self, boundary: int, head: bytes, parts: list[torch.Tensor], copier: Copier, mark: object) -> None:
        self._on_phase("snapshot_copy")
        size = len(head) + sum(part.numel() for part in parts)
        room = self.own.room(self._rank, boundary, size, self.kept)
        copier.pin(room)
        slot = torch.frombuffer(room, dtype=torch.uint8)
        slot[: len(head)].copy_(torch.frombuffer(bytearray(head), dtype=torch.uint8))
        copier.copy(parts, slot[len(head) :], mark)
        self.copied = size
        self._on_phase("replica_send")
        self.keep(boundary, room)

    def _capture(self) -> None:
        """Nothing: what a failure in this step needs was captured at its beginning."""

    def _capture_again(self) -> None:
        """Nothing, for the same reason."""

    def _needed(self) -> int:
        return self._payload_boundary

    def before_optimizer(self, size: int) -> None:
        with self._stalling():
            self._wait_copied()
        super().before_optimizer(size)
