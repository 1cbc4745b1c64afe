"""Whose tensors are the same as whose, decided from how they lie over ranks, and how a rank makes sure of it.

A rank whose tensors another node holds as well sends that one no tensors, only what is its own (random numbers, data
position, ...) and a sum over its tensors. The twin confirms a snapshot once its own of that step is complete and has
the same sum: so a state counts as safe only where it really is there twice, bit for bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from math import prod

from phoenix_core.errors import SnapshotUnavailable


def same_part(rank: int, ranks: Sequence[int], shape: Sequence[int], replicated: Sequence[bool]) -> frozenset[int]:
    """The ranks that have the same part of a tensor as `rank`, itself among them.

    The tensor lies over a mesh of `shape`, whose `ranks` are listed in row-major order; along the dimensions that are
    `replicated` all have the same, along the others each has a part of its own. Who is not in the mesh is alone.
    """
    if rank not in ranks:
        return frozenset({rank})
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]

    def parts(place: int) -> list[int]:
        steps = zip(strides, shape, replicated, strict=True)
        return [place // stride % length for stride, length, everywhere in steps if not everywhere]

    mine = parts(list(ranks).index(rank))
    return frozenset(other for place, other in enumerate(ranks) if parts(place) == mine)


def twins_of(rank: int, tensors: Iterable[frozenset[int]]) -> frozenset[int]:
    """The other ranks that have all tensors of `rank`; each is given by the ranks that have the same of it."""
    found = list(tensors)
    return frozenset.intersection(*found) - {rank} if found else frozenset()


def holder_among(rank: int, twins: Iterable[int], nodes: Sequence[str]) -> int | None:
    """The twin that keeps what is `rank`'s own: the next one on another node, so that each keeps about one's; or None.

    `nodes[r]` is the node of rank r.
    """
    size = len(nodes)
    elsewhere = [twin for twin in twins if nodes[twin] != nodes[rank]]
    return min(elsewhere, key=lambda twin: (twin - rank) % size, default=None)


class Sums:
    """Sums over this rank's tensors by boundary: what it has in its own slots. Told by one thread, asked by others."""

    def __init__(self) -> None:
        self._sums: dict[int, str] = {}
        self._changed = threading.Condition()

    def tell(self, boundary: int, sum_: str, kept: int = 2) -> None:
        """The own slot of `boundary` is complete; "" where this rank passes without one. The latest `kept` count."""
        with self._changed:
            self._sums[boundary] = sum_
            for old in sorted(self._sums)[:-kept]:
                if old != boundary:
                    del self._sums[old]
            self._changed.notify_all()

    def forget_after(self, boundary: int) -> None:
        """The job goes back to `boundary`: what came later is void."""
        with self._changed:
            self._sums = {kept: sum_ for kept, sum_ in self._sums.items() if kept <= boundary}

    def agree(self, boundary: int, sum_: str, limit_s: float) -> bool:
        """Whether a twin's sum is that of this rank, once that is known.

        Raises SnapshotUnavailable where it is not known after `limit_s`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: boundary in self._sums, limit_s):
                raise SnapshotUnavailable(f"this rank has no snapshot of step {boundary} yet")
            return self._sums[boundary] == sum_
