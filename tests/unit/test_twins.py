"""Whose tensors are the same as whose, over every mesh; and that a twin confirms only what it has itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.twins import Sums, holder_among, same_part, twins_of


@st.composite
def meshes(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool]]:
    """The ranks of a mesh in any order, its shape, and along which dimensions the tensor is replicated."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ranks = draw(st.permutations(range(prod(shape) + 2)))[: prod(shape)]
    replicated = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    return ranks, shape, replicated


@given(meshes())
def test_the_same_part_is_where_only_replicated_coordinates_differ(
    mesh: tuple[list[int], list[int], list[bool]],
) -> None:
    ranks, shape, replicated = mesh
    places = dict(zip(ranks, product(*map(range, shape)), strict=True))
    for rank in ranks:
        found = same_part(rank, ranks, shape, replicated)
        for other in ranks:
            differing = [dim for dim in range(len(shape)) if places[rank][dim] != places[other][dim]]
            assert (other in found) == all(replicated[dim] for dim in differing)
    outsider = max(ranks) + 1
    assert same_part(outsider, ranks, shape, replicated) == {outsider}


@given(st.integers(1, 8), st.data())
def test_twins_are_each_others(size: int, data: st.DataObject) -> None:
    """Each tensor parts the ranks into those that have the same of it."""
    tensors: list[Sequence[int]] = data.draw(
        st.lists(st.lists(st.integers(0, 2), min_size=size, max_size=size), max_size=4)
    )
    twins = {
        rank: twins_of(rank, [frozenset(o for o in range(size) if part[o] == part[rank]) for part in tensors])
        for rank in range(size)
    }
    for rank, other in product(range(size), repeat=2):
        alike = bool(tensors) and rank != other and all(part[rank] == part[other] for part in tensors)
        assert (other in twins[rank]) == (rank in twins[other]) == alike


@given(st.integers(1, 4), st.integers(2, 4))
def test_hsdp_has_its_twins_at_the_same_place_of_another_replica(shards: int, replicas: int) -> None:
    ranks = list(range(shards * replicas))
    nodes = [f"n{rank // shards}" for rank in ranks]
    holders = []
    for rank in ranks:
        part = same_part(rank, ranks, (replicas, shards), (True, False))
        assert part == {other for other in ranks if other % shards == rank % shards}
        holders.append(holder_among(rank, twins_of(rank, [part]), nodes))
    assert sorted(holder for holder in holders if holder is not None) == ranks, "each keeps one's"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.data())
def test_a_twin_on_the_same_node_is_no_holder(nodes: list[str], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, len(nodes) - 1))
    twins = data.draw(st.sets(st.integers(0, len(nodes) - 1))) - {rank}
    holder = holder_among(rank, twins, nodes)
    elsewhere = {twin for twin in twins if nodes[twin] != nodes[rank]}
    assert holder in elsewhere if elsewhere else holder is None


def test_a_twin_waits_for_its_own_snapshot_before_it_says_anything() -> None:
    sums, answers = Sums(), []
    asking = threading.Thread(target=lambda: answers.append(sums.agree(5, "five", 30)))
    asking.start()
    sums.tell(4, "four")
    sums.tell(5, "five")
    asking.join(30)
    assert answers == [True]
    assert not sums.agree(5, "another", 30)
    sums.tell(6, "")  # it passes that step without a snapshot, so its peer must not wait for one
    assert not sums.agree(6, "six", 30)
    with pytest.raises(SnapshotUnavailable, match="no snapshot of step 7 yet"):
        sums.agree(7, "seven", 0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=20))
def test_what_is_void_or_old_is_not_confirmed(told: Sequence[int]) -> None:
    sums = Sums()
    for boundary in told:
        sums.forget_after(boundary)
        sums.tell(boundary, str(boundary))
    for boundary in range(10):
        known = boundary in told[-1:]
        try:
            assert sums.agree(boundary, str(boundary), 0)
            assert boundary <= told[-1]
        except SnapshotUnavailable:
            assert not known
