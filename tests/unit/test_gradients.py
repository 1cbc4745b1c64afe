"""Gradients that are kept from step to step are state; those that a script clears before it adds to them are not."""

from __future__ import annotations

import pytest
import torch

from phoenix_core.errors import UsageError
from phoenix_core.gradients import nonzero
from phoenix_core.snapshot import Protected


class Loop:
    """A model of two layers; the second one's gradients add up over steps unless the loop clears them."""

    def __init__(self, *, set_to_none: bool = True) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        for parameter in self.model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        self.protected = Protected()
        self.protected.add({"model": self.model})
        self.gradients = self.protected.gradients
        self.set_to_none = set_to_none

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.ones(1, 2)).sum()
        return loss

    def step(self, *, clear: bool, at_start: bool = False) -> None:
        self.gradients.arrive()
        if at_start:
            self.model.zero_grad(self.set_to_none)
        self.backward()
        if clear and not at_start:
            self.model.zero_grad(self.set_to_none)
        self.model[0].zero_grad(self.set_to_none)
        self.gradients.left()

    def backward(self) -> None:
        loss = self.forward()
        self.gradients.at_backward()
        loss.backward()

    def kept(self) -> dict[int, torch.Tensor]:
        return {i: part.clone() for i, part in self.gradients.at_boundary().items()}

    def held(self) -> list[torch.Tensor | None]:
        return [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]


def equal(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
    return all(
        a is b is None or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("broken_in", ["forward", "backward"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_kept_gradients_are_put_back(broken_in: str, set_to_none: bool) -> None:
    loop = Loop(set_to_none=set_to_none)
    loop.step(clear=False)
    loop.step(clear=False)
    start, held = loop.protected.capture_start(), loop.held()
    loop.gradients.arrive()
    loop.forward() if broken_in == "forward" else loop.backward()
    assert set(loop.gradients.at_boundary()) == {2, 3}
    loop.protected.load_start(start)
    loop.gradients.left()
    assert equal(loop.held(), held), "also if the loop's code clears them on its way to the step"
    loop.model.zero_grad(set_to_none=False)
    loop.protected.load_start(start)
    assert equal(loop.held(), held)


def test_a_replacement_gets_them_from_a_twin() -> None:
    giver, taker = Loop(), Loop()
    giver.step(clear=False)
    start = giver.protected.capture_start()
    described, parts = giver.protected.describe([], start)
    description, rooms = taker.protected.place(described)
    for part, room in zip(parts, rooms, strict=True):
        room[:] = part
    taker.protected.load_start(description["start"])
    assert equal(taker.held(), giver.held()) and taker.model[1].weight.grad is not None
    giver.step(clear=False)
    taker.step(clear=False)
    assert equal(taker.held(), giver.held())


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("at_start", [True, False])
def test_cleared_gradients_are_no_state(at_start: bool, set_to_none: bool) -> None:
    loop = Loop(set_to_none=set_to_none)
    loop.step(clear=True, at_start=at_start)
    loop.step(clear=True, at_start=at_start)
    assert loop.kept() == {}
    loop.gradients.arrive()
    if at_start:
        loop.model.zero_grad(set_to_none)
    loop.backward()
    assert loop.kept() == {}, "what the broken step itself added is not the boundary's"


def test_what_is_kept_again_after_it_was_cleared_is_state_again() -> None:
    loop = Loop(set_to_none=False)
    for step in range(4):
        loop.step(clear=step % 2 == 1)
        assert set(loop.kept()) == (set() if step % 2 else {2, 3})


def test_what_a_broken_step_added_unseen_is_not_taken_for_the_boundarys() -> None:
    loop = Loop()
    loop.step(clear=False)
    loop.gradients.arrive()
    loop.forward().backward()  # of a module whose outputs tell nothing
    assert loop.kept() == {}


def test_a_snapshot_does_not_see_what_is_added_later() -> None:
    loop = Loop()
    loop.step(clear=False)
    loop.gradients.arrive()
    found = loop.gradients.at_boundary()
    before = {i: part.clone() for i, part in found.items()}
    loop.backward()
    assert all(torch.equal(found[i], before[i]) for i in before) and before


def test_sparse_gradients_come_back_empty_and_cannot_be_kept() -> None:
    protected, embedding = Protected(), torch.nn.Embedding(5, 2, sparse=True)
    protected.add({"model": embedding})
    embedding(torch.tensor([1])).sum().backward()
    embedding.zero_grad(set_to_none=False)
    start = protected.capture_start()
    protected.gradients.arrive()
    embedding(torch.tensor([2])).sum().backward()
    protected.load_start(start)
    protected.gradients.left()
    assert embedding.weight.grad is not None and embedding.weight.grad.is_sparse and not embedding.weight.grad._nnz()
    protected.gradients.arrive()
    embedding(torch.tensor([2])).sum().backward()  # adds to what was put back
    protected.gradients.arrive()
    with pytest.raises(UsageError, match="sparse gradients"):
        protected.gradients.at_backward()


@pytest.mark.parametrize("value", [1e-45, -1.0, float("nan"), 0.0, -0.0])
def test_anything_but_zero_is_something(value: float) -> None:
    dense = torch.zeros(3)
    dense[1] = value
    assert nonzero({4: dense, 5: torch.zeros(0)}) == (set() if value == 0.0 else {4})
