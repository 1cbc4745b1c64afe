"""Two ranks with the same tensors, in one process: what travels between them, what is confirmed, what comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from phoenix_core import advice, ddp
from phoenix_core.bandwidth import Throttle
from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.exchange import Exchange
from phoenix_core.inbox import Call, Inbox, Plan
from phoenix_core.shards import ShardGate
from phoenix_core.snapshot import Protected
from phoenix_core.world import World

NODES = ("n0", "n1")
WIDTH = 64


class Alike(Protected):
    """As if the layout told that each of two ranks has the other's tensors."""

    def twins(self, rank: int) -> frozenset[int]:
        return frozenset({1 - rank})


class Side:
    """One rank: a model with an optimizer that has a state, its snapshots and its server."""

    def __init__(self, rank: int, *, seed: int = 0) -> None:
        self.rank = rank
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(WIDTH, WIDTH)
        self.model.register_buffer("own", torch.tensor([float(rank)]))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.protected = Alike()
        self.protected.add({"model": self.model, "optimizer": self.optimizer})
        self.inbox = Inbox()
        self.exchange = Exchange(self.protected, "127.0.0.1", "token")
        buckets = ddp.Buckets(self.protected.ddp_modules)
        self.gate = ShardGate(self.protected, self.inbox, lambda _: None, Throttle(None), buckets, self.exchange)

    def open(self, other: Side) -> None:
        assert self.gate.holder(self.rank, NODES) == other.rank
        peers = [self.exchange.address, self.exchange.address]
        peers[other.rank] = other.exchange.address
        self.gate.open(self.rank, 1, other.rank, peers, "token")

    def step(self, by: float = 1.0) -> None:
        """The same on both sides, but for `by`."""
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, by)
        self.optimizer.step()

    def close(self) -> None:
        self.gate.close()
        self.exchange.close()


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    both = Side(0), Side(1)
    for side, other in (both, both[::-1]):
        side.open(other)
    yield both
    for side in both:
        side.close()


def keep_all(sides: tuple[Side, Side], boundary: int) -> None:
    for side in sides:
        side.gate.snapshot(boundary, recorded={})
    for side in sides:
        side.gate.wait_safe(boundary)


def call(sides: tuple[Side, Side]) -> Call:
    world = World(generation=2, ranks=("w0", "w1"), spares=())
    peers = tuple(side.exchange.address for side in sides)
    return Call(world=world, joining=(0,), fresh=False, boundary=0, peers=peers, nodes=NODES, local_ranks={})


def test_equal_twins_send_each_other_no_tensors_and_give_all_back(sides: tuple[Side, Side]) -> None:
    keep_all(sides, 0)
    for side in sides:
        side.step()
    keep_all(sides, 1)
    assert all(side.gate.sent < side.gate.copied / 4 for side in sides)
    wanted, small = sides[0].protected.digests(), sides[0].model.get_buffer("own").clone()
    random_numbers = torch.get_rng_state()
    spare = Side(0, seed=9)
    spare.model.get_buffer("own").fill_(7.0)
    plan = Plan(boundary=1, disk=False, tensors=1, small=1)
    kept = spare.exchange.kept_of(call(sides), plan, 0, spare.gate.own, spare.gate.kept, whole=True)
    layouts, _, found = spare.gate.put_back(1, [], b"", kept)
    spare.protected.load_small(found)
    assert spare.protected.digests() == wanted and torch.equal(spare.model.get_buffer("own"), small)
    assert torch.equal(torch.get_rng_state(), random_numbers) and layouts == []
    spare.open(sides[1])
    spare.gate.make_safe(1, kept)
    assert spare.gate.own.boundaries() == {0: (1,)} and spare.gate.sent < spare.gate.copied / 4
    spare.close()


def test_a_twins_damaged_tensors_are_not_given_away(sides: tuple[Side, Side]) -> None:
    keep_all(sides, 0)
    payload, _ = sides[1].gate.own._kept[1][0]
    assert isinstance(payload, memoryview)
    payload[len(payload) // 2] ^= 1
    plan = Plan(boundary=0, disk=False, tensors=1, small=1)
    with pytest.raises(SnapshotUnavailable, match="the state of rank 1 at step 0 was damaged where it was kept"):
        sides[0].exchange.kept_of(call(sides), plan, 0, sides[0].gate.own, sides[0].gate.kept, whole=True)
    assert sides[1].gate.own.boundaries() == {}


def test_twins_that_turn_out_to_differ_send_everything(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(advice, "_said", set())
    keep_all(sides, 0)
    for side in sides:
        side.step(by=1.0 + side.rank)
    keep_all(sides, 1)
    assert "replicas of this job hold different parameters" in capsys.readouterr().err
    for side, other in (sides, sides[::-1]):
        assert other.exchange.holdings()[0] == {side.rank: (1,)}
        assert other.exchange.held_states[0].get(side.rank, 1) == side.gate.own.get(side.rank, 1)
    keep_all(sides, 2)
    assert all(side.gate.sent == len(side.gate.own.get(side.rank, 2)) for side in sides)


def test_what_was_kept_is_dropped_once_the_job_has_gone_on_without_it(sides: tuple[Side, Side]) -> None:
    for boundary in range(3):
        keep_all(sides, boundary)
    for side in sides:
        side.gate.resumed(1, side.exchange.held_states, NODES)
        assert side.gate.own.boundaries() == {side.rank: (1,)}
        assert side.exchange.holdings() == ({}, {1 - side.rank: (1,)})


def test_a_late_twin_is_waited_for_in_the_collectives_with_it_and_not_before(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the rank that waits would be the one that the others wait for, and be blamed for a hang."""
    early, late = sides
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 1)
    early.gate.arrive(0)
    early.gate.begin_step({})
    for _ in range(3):
        early.gate.before_collective("reduce_scatter_single", everybody=False)
    assert early.gate.waited_ns == 0
    late.gate.arrive(0)
    early.gate.wait_safe(0)
    late.gate.wait_safe(0)
