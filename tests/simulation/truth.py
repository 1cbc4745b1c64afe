"""The undisturbed run: what every rank's state is at every boundary, as small integers that hash their whole past.

One step executed twice, left out, or computed from the wrong state or from another rank's gives another number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


def small_after(small: int, rank: int) -> int:
    """A rank's own state (random generators, data position) once it has drawn a batch."""
    return hash((small, rank, 1))


def gradient(tensors: int, small: int) -> int:
    return hash((tensors, small, 2))


def tensors_after(tensors: int, reduced: int) -> int:
    """The replicated state after the optimizer; `reduced` is the sum of all gradients."""
    return hash((tensors, reduced, 3))


@dataclass(frozen=True)
class Truth:
    """`tensors[b]` and `small[b][r]` at boundary b."""

    tensors: tuple[int, ...]
    small: tuple[tuple[int, ...], ...]


@cache
def undisturbed(size: int, steps: int) -> Truth:
    tensors, small = [0], [tuple(hash((rank, 4)) for rank in range(size))]
    for _ in range(steps):
        drawn = tuple(small_after(own, rank) for rank, own in enumerate(small[-1]))
        reduced = sum(gradient(tensors[-1], own) for own in drawn)
        tensors.append(tensors_after(tensors[-1], reduced))
        small.append(drawn)
    return Truth(tuple(tensors), tuple(small))
