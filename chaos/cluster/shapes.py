"""The shapes of a network partition: from nodes to the directed pairs between which no packet passes. Pure.

A pair (a, b) says that what a sends never reaches b. Nodes are in ring order; `at` is the node at which the fault is
aimed. The coordinator is a party of the control network; where a shape has sides, it is on the one without `at`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Final

from chaos.cluster.layout import COORDINATOR, Plane

Pair = tuple[str, str]
Block = tuple[Plane, str, str]

Shape = Callable[[Sequence[str], str], frozenset[Pair]]


def isolate(parties: Sequence[str], at: str) -> frozenset[Pair]:
    """`at` on one side, everybody else on the other."""
    return _between([at], [party for party in parties if party != at])


def halves(parties: Sequence[str], at: str) -> frozenset[Pair]:
    """Two sides as equal as can be: the smaller half begins with `at`, the coordinator is in the other."""
    ring = _ring(parties, at)
    cut = len(ring) // 2
    return _between(ring[:cut], [*ring[cut:], *_coordinator(parties)])


def bridge(parties: Sequence[str], at: str) -> frozenset[Pair]:
    """Two halves that are cut off from each other, and `at`, which both of them can reach."""
    _, *others = _ring(parties, at)
    cut = len(others) // 2
    return _between(others[:cut], [*others[cut:], *_coordinator(parties)])


def majority_ring(parties: Sequence[str], at: str) -> frozenset[Pair]:
    """Every node reaches a majority (itself counted), and no two the same one: its nearest neighbours in the ring.

    The coordinator is reached by the nodes that reach `at`.
    """
    ring = _ring(parties, at)
    size = len(ring)
    reach = (size // 2 + 1) // 2
    far = {i: {j for j in range(size) if reach < (i - j) % size < size - reach} for i in range(size)}
    pairs = {(ring[i], ring[j]) for i in far for j in far[i]}
    return frozenset(pairs) | _between(_coordinator(parties), [ring[j] for j in far[0]])


def one_way(parties: Sequence[str], at: str) -> frozenset[Pair]:
    """`at` is heard by everybody and hears nobody."""
    return frozenset((party, at) for party in parties if party != at)


def pair(parties: Sequence[str], at: str) -> frozenset[Pair]:
    """`at` and the next node of the ring."""
    ring = _ring(parties, at)
    return _between(ring[:1], ring[1:2])


SHAPES: Final[Mapping[str, Shape]] = {
    "isolate": isolate,
    "halves": halves,
    "majority_ring": majority_ring,
    "bridge": bridge,
    "one_way": one_way,
    "pair": pair,
}
LEAST_NODES: Final[Mapping[str, int]] = {"majority_ring": 4, "bridge": 3}
"""Nodes below which a shape divides nobody; the others need two."""


def blocks(shape: str, planes: Iterable[Plane], nodes: Sequence[str], at: str) -> frozenset[Block]:
    """What a partition of this shape blocks on each of the planes."""
    found: set[Block] = set()
    for plane in planes:
        parties = [*nodes, COORDINATOR] if plane is Plane.CONTROL else list(nodes)
        found |= {(plane, sender, receiver) for sender, receiver in SHAPES[shape](parties, at)}
    return frozenset(found)


def planes_of(text: str) -> tuple[Plane, ...]:
    """What the parameter `plane` means: one of the two networks, or both."""
    return tuple(Plane) if text == "both" else (Plane(text),)


def _ring(parties: Sequence[str], at: str) -> list[str]:
    nodes = [party for party in parties if party != COORDINATOR]
    start = nodes.index(at)
    return [*nodes[start:], *nodes[:start]]


def _coordinator(parties: Sequence[str]) -> list[str]:
    return [party for party in parties if party == COORDINATOR]


def _between(one: Iterable[str], other: Iterable[str]) -> frozenset[Pair]:
    pairs = list(product(one, other))
    return frozenset([*pairs, *((receiver, sender) for sender, receiver in pairs)])
