"""The form of a rank's snapshot: a head, in which the small state is, then the bytes of its tensors in a row.

Without tensors it is the *bare* state of a rank whose tensors a twin has; with those of the twin it is complete again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from phoenix_core import ddp
from phoenix_core.buffers import Key
from phoenix_core.kept import Payload, checksum
from phoenix_core.packing import fill
from phoenix_core.snapshot import Protected

Listed = tuple[Key, torch.dtype, tuple[int, ...]]
"""A tensor: its name, type and shape."""
ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class Head:
    """Small state, what a step begins with, buckets, and which tensors follow; `shared_sum`: see `bare`."""

    small: bytes
    start: bytes
    layouts: list[ddp.Layout]
    tensors: list[Listed]
    shared_sum: str = ""

    def packed(self) -> bytes:
        """With its length before it, and room up to where tensors may begin."""
        head = pickle.dumps(self)
        packed = len(head).to_bytes(8, "little") + head
        return packed + b"\0" * (-len(packed) % ALIGNMENT)

    @property
    def complete(self) -> bool:
        """Whether the tensors are this rank's own: not left out, and not a twin's."""
        return not self.shared_sum


@dataclass(frozen=True, kw_only=True)
class WholeState:
    head: Head
    data: memoryview


def parse(payload: Payload) -> WholeState:
    view = memoryview(payload)
    length = int.from_bytes(view[:8], "little")
    begin = 8 + length
    return WholeState(head=pickle.loads(view[8:begin]), data=view[begin + -begin % ALIGNMENT :])


def load(protected: Protected, payload: Payload) -> Head:
    """Put the tensors back into the live ones."""
    state = parse(payload)
    fill(protected.targets_for(state.head.tensors), state.data)
    return state.head


def bare(payload: Payload) -> tuple[bytes, str]:
    """What of a snapshot travels to a twin: all but the tensors, of which a checksum; and that checksum."""
    state = parse(payload)
    head, shared_sum = state.head, checksum(state.data)
    return Head(
        small=head.small, start=head.start, layouts=head.layouts, tensors=[], shared_sum=shared_sum
    ).packed(), shared_sum


def rejoined(head: Head, tensors: list[Listed], room: Callable[[int], memoryview]) -> tuple[memoryview, memoryview]:
    """A snapshot from the `head` of a bare one and a twin's `tensors`, in `room(size)`: all of it, and the part that
    the twin's bytes are still to be written to."""
    packed = Head(
        small=head.small, start=head.start, layouts=head.layouts, tensors=tensors, shared_sum=head.shared_sum
    ).packed()
    whole = room(len(packed) + size_of(tensors))
    whole[: len(packed)] = packed
    return whole, whole[len(packed) :]


def size_of(tensors: Sequence[Listed]) -> int:
    """The bytes of all of them in a row."""
    return sum(prod(shape) * dtype.itemsize for _, dtype, shape in tensors)
