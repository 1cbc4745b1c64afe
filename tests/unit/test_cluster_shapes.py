"""Partitions as data: what each shape blocks, for any number of nodes and any node that it is aimed at."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.cluster.layout import COORDINATOR, Network, Plane, addresses, coordinator_party, node_parties
from chaos.cluster.shapes import LEAST_NODES, SHAPES, Pair, blocks, planes_of

DATA, CONTROL = Plane.DATA, Plane.CONTROL


@st.composite
def clusters(draw: st.DrawFn, least: int = 4) -> tuple[list[str], str]:
    nodes = [f"n{index}" for index in range(draw(st.integers(least, 24)))]
    return nodes, draw(st.sampled_from(nodes))


def cut(shape: str, nodes: list[str], at: str, plane: Plane = DATA) -> frozenset[Pair]:
    return frozenset((sender, receiver) for _, sender, receiver in blocks(shape, [plane], nodes, at))


def reached(nodes: list[str], pairs: frozenset[Pair], node: str) -> frozenset[str]:
    """Itself included."""
    return frozenset(other for other in nodes if (node, other) not in pairs)


@given(clusters(), st.sampled_from(sorted(SHAPES)), st.sampled_from(["data", "control", "both"]))
def test_every_shape_parts_somebody_and_nobody_from_himself(
    cluster: tuple[list[str], str], shape: str, plane: str
) -> None:
    nodes, at = cluster
    found = blocks(shape, planes_of(plane), nodes, at)
    assert {plane for plane, _, _ in found} == set(planes_of(plane))
    assert all(sender != receiver for _, sender, receiver in found)
    assert {party for _, *pair in found for party in pair} <= {*nodes, COORDINATOR}
    assert all(COORDINATOR not in pair for plane, *pair in found if plane is DATA)
    if shape != "one_way":
        assert {(plane, receiver, sender) for plane, sender, receiver in found} == found


@given(clusters(least=2), st.sampled_from(list(Plane)))
def test_an_isolated_node_reaches_nobody_and_the_others_reach_each_other(
    cluster: tuple[list[str], str], plane: Plane
) -> None:
    nodes, at = cluster
    parties = [*nodes, COORDINATOR] if plane is CONTROL else nodes
    pairs = cut("isolate", nodes, at, plane)
    assert reached(parties, pairs, at) == {at}
    for other in set(parties) - {at}:
        assert reached(parties, pairs, other) == set(parties) - {at}


@given(clusters(least=2))
def test_halves_are_two_sides_that_differ_by_one_at_the_most(cluster: tuple[list[str], str]) -> None:
    nodes, at = cluster
    pairs = cut("halves", nodes, at)
    sides = {reached(nodes, pairs, node) for node in nodes}
    assert len(sides) == 2
    mine = reached(nodes, pairs, at)
    (other,) = sides - {mine}
    assert mine | other == set(nodes) and not mine & other
    assert 0 <= len(other) - len(mine) <= 1


@given(clusters(least=3))
def test_a_bridge_joins_two_sides_that_cannot_hear_each_other(cluster: tuple[list[str], str]) -> None:
    nodes, at = cluster
    pairs = cut("bridge", nodes, at)
    assert reached(nodes, pairs, at) == set(nodes)
    sides = {reached(nodes, pairs, node) - {at} for node in set(nodes) - {at}}
    assert len(sides) == 2 and not frozenset.intersection(*sides)


@given(clusters(least=4))
def test_in_a_majority_ring_everybody_reaches_another_majority(cluster: tuple[list[str], str]) -> None:
    nodes, at = cluster
    seen = [reached(nodes, cut("majority_ring", nodes, at), node) for node in nodes]
    assert all(len(reach) > len(nodes) / 2 for reach in seen)
    assert len(set(seen)) == len(nodes)


@given(clusters(least=2))
def test_one_way_is_to_be_heard_and_to_hear_nobody(cluster: tuple[list[str], str]) -> None:
    nodes, at = cluster
    assert cut("one_way", nodes, at) == {(other, at) for other in nodes if other != at}


@given(clusters(least=2))
def test_a_pair_is_two_nodes_and_no_more(cluster: tuple[list[str], str]) -> None:
    nodes, at = cluster
    pairs = cut("pair", nodes, at)
    assert len(pairs) == 2 and all(at in pair for pair in pairs)


@pytest.mark.parametrize(("shape", "side"), [("isolate", "n1"), ("halves", "n1"), ("bridge", "n2")])
def test_the_coordinator_is_on_the_other_side(shape: str, side: str) -> None:
    assert (side, COORDINATOR) in cut(shape, ["n0", "n1", "n2", "n3", "n4"], "n1", CONTROL)


@pytest.mark.parametrize(("shape", "least"), LEAST_NODES.items())
def test_with_fewer_nodes_a_shape_does_not_say_what_its_name_says(shape: str, least: int) -> None:
    nodes = [f"n{index}" for index in range(least - 1)]
    assert not cut(shape, nodes, "n0")


def test_no_two_parties_share_an_address() -> None:
    parties = [coordinator_party(3), *node_parties([f"n{i}" for i in range(1000)], list(range(1000)))]
    given = [(plane, address) for party in parties for plane, address in party.address.items()]
    assert len(set(given)) == len(given) == 2001
    assert addresses(0) == {CONTROL: "10.64.0.1", DATA: "10.65.0.1"}


def test_a_network_survives_its_file() -> None:
    parties = (coordinator_party(3), *node_parties(["n0", "n1"], [5, 6]))
    network = Network(pid=7, start_ticks=9, parties=parties)
    data = network.to_json()
    assert Network.from_json(data) == network
    nodes = data["nodes"]
    assert isinstance(nodes, dict)
    assert nodes["n1"]["prefix"] == ["nsenter", "--net=/proc/7/fd/6", "--"]
    assert set(product(nodes, ["address", "prefix"])) <= {(name, key) for name in nodes for key in nodes[name]}
