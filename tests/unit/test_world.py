"""World: a worker holds one place, and the value survives its JSON form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phoenix_core.errors import UsageError
from phoenix_core.world import World

WORKERS = st.lists(st.from_regex(r"w[0-9]{1,3}", fullmatch=True), unique=True, min_size=1, max_size=12)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    workers = draw(WORKERS)
    size = draw(st.integers(1, len(workers)))
    generation = draw(st.integers(0, 1000))
    return World(generation=generation, ranks=tuple(workers[:size]), spares=tuple(workers[size:]))


@given(worlds())
def test_json_round_trip(world: World) -> None:
    assert World.from_json(json.loads(json.dumps(world.to_json()))) == world


@given(worlds())
def test_rank_of_is_the_inverse_of_ranks(world: World) -> None:
    assert [world.rank_of(worker) for worker in world.ranks] == list(range(world.size))
    assert all(world.rank_of(worker) is None for worker in world.spares)
    assert world.rank_of("stranger") is None


@pytest.mark.parametrize(("ranks", "spares"), [(("w0", "w0"), ()), (("w0", "w1"), ("w1",)), (("w0",), ("w2", "w2"))])
def test_a_worker_holds_one_place(ranks: tuple[str, ...], spares: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="holds two places in generation 3"):
        World(generation=3, ranks=ranks, spares=spares)


def test_a_generation_is_never_negative() -> None:
    with pytest.raises(UsageError, match="never negative: -1"):
        World(generation=-1, ranks=("w0",))
