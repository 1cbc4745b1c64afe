"""What a survivor has stays whole until what takes its place has come whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from phoenix_core.errors import PeerLost
from phoenix_core.exchange import Exchange
from phoenix_core.inbox import Call
from phoenix_core.late import Told
from phoenix_core.snapshot import Protected
from phoenix_core.world import World

GENERATION, BOUNDARY = 2, 7


def trained(seed: int, steps: int) -> Protected:
    """A model after so many steps: one that has taken none has no optimizer state yet."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    protected = Protected()
    protected.add({"model": model, "optimizer": optimizer})
    for _ in range(steps):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return protected


class Pair:
    """Rank 0 rests at the boundary that rank 1 shall be taken to."""

    def __init__(self, steps_behind: int) -> None:
        self.ahead, self.behind = trained(1, 3), trained(2, steps_behind)
        self.exchanges = [Exchange(protected, "127.0.0.1", "token") for protected in (self.ahead, self.behind)]
        self.exchanges[0].rest(GENERATION, BOUNDARY, [], self.ahead.capture_start(), Told())
        self.call = Call(
            world=World(generation=GENERATION, ranks=("w0", "w1"), spares=()),
            joining=(),
            fresh=False,
            boundary=0,
            peers=tuple(exchange.address for exchange in self.exchanges),
            nodes=("n0", "n1"),
            local_ranks={},
        )

    def fetch(self, *, aside: bool) -> int:
        return self.exchanges[1].fetch_live(self.call, 0, BOUNDARY, aside=aside)[3]


@pytest.fixture
def pair() -> Iterator[Callable[[int], Pair]]:
    made: list[Pair] = []

    def make(steps_behind: int) -> Pair:
        made.append(Pair(steps_behind))
        return made[-1]

    yield make
    for exchange in (exchange for one in made for exchange in one.exchanges):
        exchange.close()


@pytest.mark.parametrize("steps_behind", [0, 2])
def test_a_survivor_keeps_its_state_until_it_takes_the_other_in(pair: Callable[[int], Pair], steps_behind: int) -> None:
    both = pair(steps_behind)
    before = both.behind.digests()
    assert both.fetch(aside=True) > 0
    assert both.behind.digests() == before != both.ahead.digests()
    both.exchanges[1].take_in()
    assert both.behind.digests()[0] == both.ahead.digests()[0]
    assert both.exchanges[1]._aside is None, "its memory is given back"


@pytest.mark.parametrize("steps_behind", [0, 2])
def test_what_came_by_half_leaves_no_trace(
    pair: Callable[[int], Pair], monkeypatch: pytest.MonkeyPatch, steps_behind: int
) -> None:
    both = pair(steps_behind)
    before, describe = both.behind.digests(), both.ahead.describe

    def break_off(parts: Iterator[memoryview]) -> Iterator[memoryview]:
        yield next(parts)
        raise ConnectionError

    def half(*args: object) -> tuple[bytes, Iterator[memoryview]]:
        description, parts = describe(*args)  # type: ignore[arg-type]
        return description, break_off(parts)

    monkeypatch.setattr(both.ahead, "describe", half)
    with pytest.raises(PeerLost):
        both.fetch(aside=True)
    both.exchanges[1].take_in()
    assert both.behind.digests() == before


def test_what_was_fetched_in_a_generation_that_is_over_is_dropped(pair: Callable[[int], Pair]) -> None:
    both = pair(2)
    before = both.behind.digests()
    both.fetch(aside=True)
    both.exchanges[1].rest(GENERATION + 1, BOUNDARY - 1, [], b"", Told())
    both.exchanges[1].take_in()
    assert both.behind.digests() == before


def test_who_has_no_state_fetches_in_place(pair: Callable[[int], Pair]) -> None:
    both = pair(0)
    both.fetch(aside=False)
    assert both.exchanges[1]._aside is None and both.behind.digests()[0] == both.ahead.digests()[0]
