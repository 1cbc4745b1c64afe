"""Who is cut off, from what the nodes say of each other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from phoenix_core.reachability import ANSWER_S, Reachability, outside

NODES = ["n0", "n1", "n2", "n3"]
ADDRESSES = dict.fromkeys(NODES, ("10.0.0.1", 1))


def parted(*pairs: str) -> frozenset[frozenset[str]]:
    return frozenset(frozenset(pair.split("-")) for pair in pairs)


@pytest.mark.parametrize(
    ("pairs", "blamed"),
    [
        (["n2-n0", "n2-n1", "n2-n3"], ["n2"]),
        (["n1-n2"], ["n2"]),  # one pair: either would do, the higher rank goes
        (["n0-n2", "n0-n3", "n1-n2", "n1-n3"], ["n3", "n2"]),  # halves
        (["n0-n1", "n0-n2", "n0-n3", "n1-n2", "n1-n3", "n2-n3"], []),  # nobody reaches anybody
        (["s0-n0", "s0-n1", "s0-n2", "s0-n3"], ["s0"]),  # a node of spares
        ([], []),
    ],
)
def test_the_fewest_nodes_go_without_whom_all_others_reach_each_other(pairs: list[str], blamed: list[str]) -> None:
    assert outside(parted(*pairs), NODES) == blamed


def test_of_a_pair_the_node_with_fewer_ranks_goes() -> None:
    assert outside(parted("a-b"), ["a", "b", "b", "c", "c"]) == ["a"]


def answer(reach: Reachability, number: int, cut: Iterable[str]) -> None:
    for node in NODES:
        reach.told(node, number, [other for other in NODES if other != node and {node, other} & set(cut)])


def test_two_rounds_must_agree() -> None:
    reach = Reachability()
    for number, cut in ((1, ["n1"]), (2, ["n1"])):
        probe = reach.look(ADDRESSES, float(number), 100.0)
        assert probe is not None and probe.number == number
        assert reach.cut_off(NODES) == []
        answer(reach, number, cut)
    assert reach.look(ADDRESSES, 3.0, 100.0) is None
    assert reach.cut_off(NODES) == ["n1"] and not reach.sound


def test_what_only_one_round_finds_is_not_believed() -> None:
    reach = Reachability()
    for number, cut in ((1, ["n1"]), (2, [])):
        reach.look(ADDRESSES, float(number), 100.0)
        answer(reach, number, cut)
    reach.look(ADDRESSES, 3.0, 100.0)
    assert reach.cut_off(NODES) == [] and reach.sound


def test_an_agent_that_does_not_answer_is_not_waited_for_and_a_late_answer_counts_for_nothing() -> None:
    reach = Reachability()
    reach.look(ADDRESSES, 0.0, 100.0)
    assert reach.look(ADDRESSES, ANSWER_S / 2, 100.0) is None and not reach.sound
    assert reach.look(ADDRESSES, ANSWER_S + 0.1, 100.0) is None and reach.sound
    reach.rest()
    assert not reach.sound
    probe = reach.look(ADDRESSES, 10.0, 100.0)
    assert probe is not None
    answer(reach, probe.number - 1, NODES)
    reach.look(ADDRESSES, 10.0 + ANSWER_S + 0.1, 100.0)
    assert reach.sound


def test_a_network_that_is_whole_is_asked_again_after_a_while() -> None:
    reach = Reachability()
    reach.look(ADDRESSES, 0.0, 5.0)
    answer(reach, 1, [])
    assert reach.look(ADDRESSES, 0.1, 5.0) is None and reach.sound
    probe = reach.look(ADDRESSES, 5.2, 5.0)
    assert probe is not None and probe.number == 2
