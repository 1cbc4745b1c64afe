"""Buffers that change their form in the loop, and extra state of modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from phoenix_core import late
from phoenix_core.snapshot import Protected


class Grows(torch.nn.Module):
    """A cache that is replaced, a range that is resized, a mean that appears, a table that is registered late."""

    cache: torch.Tensor | None
    range: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("cache", torch.zeros(2))
        self.register_buffer("range", torch.zeros(0))
        self.register_buffer("mean", None)
        self.scale = 1.0

    def grow(self, size: int, value: float) -> None:
        self.cache = torch.full((size,), value)
        self.range.resize_(size).fill_(value)
        self.mean = torch.full((1,), value)
        if "table" not in self._buffers:
            self.register_buffer("table", torch.full((size, 2), value))
        self.scale = value

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]

    def seen(self) -> dict[str, Any]:
        return {"scale": self.scale, **{name: b.tolist() for name, b in self.named_buffers()}}


def made() -> tuple[Protected, Grows]:
    protected, module = Protected(), Grows()
    protected.add({"model": module})
    return protected, module


@pytest.mark.parametrize("grown", [0, 3, 5])
@pytest.mark.parametrize("broken", [0, 4])
def test_a_broken_steps_growth_is_undone(grown: int, broken: int) -> None:
    protected, module = made()
    if grown:
        module.grow(grown, 1.0)
    small, seen = protected.capture_small({}), module.seen()
    if broken:
        module.grow(broken, 2.0)
    protected.load_small(small)
    assert module.seen() == seen
    module.grow(6, 3.0)  # the step again: what was not there is registered anew
    assert module.seen()["cache"] == [3.0] * 6


def test_a_replacement_takes_over_what_has_grown() -> None:
    (giver, given), (taker, taken) = made(), made()
    first = taken.range
    given.grow(3, 1.0)
    described, parts = giver.describe([], giver.capture_start())
    description, rooms = taker.place(described)
    for part, room in zip(parts, rooms, strict=True):
        room[:] = part
    taker.load_start(description["start"])
    taker.load_small(giver.capture_small({}))
    assert taken.seen() == given.seen()
    assert taken.range is first, "a buffer that was resized stays the tensor that torch may know"
    assert taker.digests() == giver.digests()


def test_a_buffer_that_was_replaced_is_not_the_tensor_from_before_the_loop() -> None:
    """DistributedDataParallel broadcasts the tensors that it found when it was made."""
    protected, module = made()
    first = module.cache
    module.cache = torch.full((2,), 1.0)
    small = protected.capture_small({})
    protected.load_small(small)
    assert module.cache is not first and module.seen()["cache"] == [1.0, 1.0]


def test_a_buffer_that_went_is_gone_again() -> None:
    protected, module = made()
    module.cache = None
    small = protected.capture_small({})
    module.cache = torch.ones(7)
    protected.load_small(small)
    assert module.cache is None


def test_large_buffers_and_extra_state_that_change_late_are_taken_over() -> None:
    def rank() -> tuple[Protected, Grows]:
        protected, module = Protected(), Grows()
        module.register_buffer("large", torch.zeros(20_000))
        protected.add({"model": module})
        return protected, module

    (twin, theirs), (dead, _), (taker, mine) = rank(), rank(), rank()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        ready, small = twin.capture_small({}), dead.capture_small({})
        theirs.get_buffer("large").add_(1)
        theirs.grow(3, 2.0)
        result = late.taken_over(small, late.changed([ready], twin.capture_small({})))
        taker.load_small(bytes(result))
    assert mine.seen() == theirs.seen()
