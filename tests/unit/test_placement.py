"""The restore plan and the holders: properties over every shape of offers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.placement import Offer, Source, holder_of, plan_restore

boundaries = st.integers(0, 4)
kept = st.lists(boundaries, max_size=3, unique=True).map(tuple)


@st.composite
def offers(draw: st.DrawFn) -> tuple[int, dict[int, Offer]]:
    size = draw(st.integers(1, 6))
    survivors = draw(st.sets(st.integers(0, size - 1)))
    held = st.dictionaries(st.integers(0, size - 1), kept, max_size=size)
    one = st.builds(Offer, live=st.none() | boundaries, own=kept, held=held)
    return size, {rank: draw(one) for rank in survivors}


@given(offers())
def test_a_plan_gives_every_rank_what_its_source_really_has(case: tuple[int, dict[int, Offer]]) -> None:
    size, given_offers = case
    try:
        plan = plan_restore(given_offers, size)
    except SnapshotUnavailable:
        return
    for rank in range(size):
        source = plan.sources.get(rank)
        if source is None:
            assert given_offers[rank].live == plan.boundary
            continue
        assert source.tensors is not None and given_offers[source.tensors].live == plan.boundary
        holder = given_offers[rank].own if source.small is None else given_offers[source.small].held[rank]
        assert plan.boundary in holder


@given(offers())
def test_no_greater_boundary_was_possible(case: tuple[int, dict[int, Offer]]) -> None:
    size, given_offers = case

    def possible(boundary: int) -> bool:
        def has_small(rank: int) -> bool:
            offer = given_offers.get(rank)
            if offer is not None and (offer.live == boundary or boundary in offer.own):
                return True
            holders = [other for number, other in given_offers.items() if number != rank]
            return any(boundary in other.held.get(rank, ()) for other in holders)

        twins = [offer for offer in given_offers.values() if offer.live == boundary]
        return bool(twins) and all(has_small(rank) for rank in range(size))

    best = max((boundary for boundary in range(5) if possible(boundary)), default=None)
    try:
        assert plan_restore(given_offers, size).boundary == best
    except SnapshotUnavailable:
        assert best is None


def test_survivors_one_step_apart_meet_at_the_later_step() -> None:
    early = Offer(live=7, own=(6, 7, 8))
    late = Offer(live=8, own=(7, 8), held={2: (7, 8)})
    plan = plan_restore({0: early, 1: late}, 3)
    assert plan.boundary == 8
    assert plan.sources[0].tensors == 1 and plan.sources[0].small is None
    assert plan.sources[2].tensors == 1 and plan.sources[2].small == 1


@st.composite
def whole_offers(draw: st.DrawFn) -> tuple[int, dict[int, Offer]]:
    """Ranks with state of their own, some of which are each other's twins."""
    size = draw(st.integers(1, 6))
    survivors = draw(st.sets(st.integers(0, size - 1)))
    group = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))  # ranks of one group are twins
    held = st.dictionaries(st.integers(0, size - 1), kept, max_size=size)
    given_offers = {}
    for rank in survivors:
        twins = tuple(other for other in range(size) if group[other] == group[rank] != 0 and other != rank)
        one = st.builds(Offer, live=st.none() | boundaries, own=kept, held=held, bare=held)
        given_offers[rank] = replace(draw(one), whole=True, twins=twins)
    return size, given_offers


def sources_of(rank: int, boundary: int, offers_: dict[int, Offer]) -> Iterator[Source | None]:
    """Every way in which a rank can be given its whole state."""
    offer = offers_.get(rank)
    if offer is not None and offer.live == boundary:
        yield None
    if offer is not None and boundary in offer.own:
        yield Source(tensors=None, small=None)
    for holder, other in offers_.items():
        if holder != rank and boundary in other.held.get(rank, ()):
            yield Source(tensors=None, small=holder)
        for twin, another in offers_.items():
            has_tensors = rank in another.twins and boundary in another.own
            if holder != rank and has_tensors and boundary in other.bare.get(rank, ()):
                yield Source(tensors=twin, small=holder)


@given(whole_offers())
def test_whole_states_come_from_where_they_are_or_half_from_a_twin(case: tuple[int, dict[int, Offer]]) -> None:
    size, given_offers = case

    def possible(boundary: int) -> bool:
        return all(any(True for _ in sources_of(rank, boundary, given_offers)) for rank in range(size))

    candidates = {b for offer in given_offers.values() for b in (*offer.own, offer.live) if b is not None}
    best = max((boundary for boundary in candidates if possible(boundary)), default=None)
    try:
        plan = plan_restore(given_offers, size)
    except SnapshotUnavailable:
        assert best is None
        return
    assert plan.boundary == best
    for rank in range(size):
        source = plan.sources.get(rank)
        assert source in list(sources_of(rank, plan.boundary, given_offers))
        if source is not None and source.tensors is not None:  # only where nobody has all of it
            assert all(
                found is None or found.tensors is not None for found in sources_of(rank, plan.boundary, given_offers)
            )


@given(whole_offers())
def test_an_offer_is_read_as_it_was_written(case: tuple[int, dict[int, Offer]]) -> None:
    for offer in case[1].values():
        assert Offer.from_json(json.loads(json.dumps(offer.to_json()))) == offer


def test_what_is_missing_is_named() -> None:
    with pytest.raises(SnapshotUnavailable, match=r"step 5: nobody holds the small state of rank 1"):
        plan_restore({0: Offer(live=5)}, 2)
    with pytest.raises(SnapshotUnavailable, match="no surviving rank has a complete live state"):
        plan_restore({0: Offer(live=None)}, 2)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_a_holder_is_on_another_node_where_there_is_one(nodes: list[str]) -> None:
    for rank, node in enumerate(nodes):
        holder = holder_of(rank, nodes)
        if len(nodes) == 1:
            assert holder is None
            continue
        assert holder is not None and holder != rank
        assert (nodes[holder] != node) == (len(set(nodes)) > 1)


@given(st.integers(2, 6), st.integers(1, 4))
def test_equal_nodes_share_the_load_evenly(nodes: int, per_node: int) -> None:
    places = [f"n{node}" for node in range(nodes) for _ in range(per_node)]
    holders = [holder_of(rank, places) for rank in range(len(places))]
    assert sorted(h for h in holders if h is not None) == list(range(len(places)))
