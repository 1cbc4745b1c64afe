"""Optimizers that hold others, and states that are in part plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from phoenix_core.snapshot import Protected


class Around(torch.optim.Optimizer):
    """Slow weights around the fast ones of another optimizer, as Lookahead's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.optimizer, self.param_groups = inner, inner.param_groups

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.optimizer.step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for parameter in group["params"]:
                self.state[parameter].setdefault("slow", parameter.detach().clone()).lerp_(parameter.detach(), 0.5)


class PassesOn(torch.optim.Optimizer):
    """Only hands over to another, without being initialised as one itself."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups


class Counting(torch.optim.Optimizer):
    """Keeps a plain number in its state, and begins where the state is empty."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"], state["mean"] = 0, torch.zeros_like(parameter)
                state["step"] += 1
                state["mean"].add_(1)


class Damping(torch.optim.Optimizer):
    """Keeps an average over all parameters under a name of its own, as `state_dict()` allows."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.kept: dict[str, Any] = {"mean": torch.zeros(1), "count": 0}
        self.shared: dict[str, Any] = vars(self)["state"]
        self.shared["all"] = self.kept

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.kept["mean"] += 1
                self.kept["count"] += 1
                parameter.sub_(self.kept["mean"])


def around(model: torch.nn.Module) -> Around:
    return Around(torch.optim.AdamW(model.parameters(), lr=0.1))


def trained(seed: int, steps: int) -> tuple[Protected, torch.nn.Linear, Around]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(2, 2)
    optimizer, protected = around(model), Protected()
    protected.add({"model": model, "optimizer": optimizer})
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return protected, model, optimizer


def test_an_optimizer_inside_of_another_is_part_of_the_state() -> None:
    (giver, _, given), (taker, _, taken) = trained(1, steps=3), trained(2, steps=0)
    assert list(giver.optimizers()) == ["optimizer", "optimizer.optimizer"]
    described, parts = giver.describe([], giver.capture_start())
    description, rooms = taker.place(described)
    for part, room in zip(parts, rooms, strict=True):
        room[:] = part
    taker.load_start(description["start"])
    assert taker.digests() == giver.digests() and len(taken.optimizer.state) == 2
    assert taken.param_groups[0]["count"] == given.param_groups[0]["count"] == 3


def test_one_that_only_passes_on_is_the_one_inside() -> None:
    model, protected = torch.nn.Linear(2, 2), Protected()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    protected.add({"model": model, "optimizer": PassesOn(inner)})
    assert protected.optimizers() == {"optimizer.optimizer": inner}


def test_two_that_know_each_other_are_two() -> None:
    model, protected = torch.nn.Linear(2, 2), Protected()
    outer = around(model)
    outer.optimizer.outer = outer  # type: ignore[attr-defined]
    protected.add({"model": model, "optimizer": outer})
    assert list(protected.optimizers()) == ["optimizer", "optimizer.optimizer"]


def test_a_state_that_began_in_a_broken_step_is_gone_whole() -> None:
    model, protected = torch.nn.Linear(2, 2), Protected()
    optimizer = Counting(model.parameters())
    protected.add({"model": model, "optimizer": optimizer})
    listed = [(key, t.dtype, tuple(t.shape)) for key, t in protected.tensors()]
    start = protected.capture_start()
    optimizer.step()
    protected.targets_for(listed)
    protected.load_start(start)
    optimizer.step()  # it would fail where only its numbers had stayed
    assert all(
        optimizer.state[p]["step"] == 1 and bool((optimizer.state[p]["mean"] == 1).all()) for p in model.parameters()
    )


def test_what_is_kept_of_all_parameters_is_part_of_the_state() -> None:
    given, taken = (Damping(torch.nn.Linear(2, 2).parameters()) for _ in range(2))
    protected = [Protected(), Protected()]
    for each, optimizer in zip(protected, (given, taken), strict=True):
        each.add({"optimizer": optimizer})
    given.step()
    start = protected[0].capture_start()
    given.step()
    given.shared["later"] = 1
    for each, optimizer in zip(protected, (given, taken), strict=True):
        each.load_start(start)
        assert list(optimizer.shared) == ["all"] and optimizer.shared["all"] is optimizer.kept
        assert optimizer.kept == {"mean": torch.full((1,), 2.0), "count": 2}
