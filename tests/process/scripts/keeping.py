"""Layouts for layouts.py in which state is kept in places that few scripts use."""

from __future__ import annotations

from typing import Any

import layouts  # type: ignore[import-not-found]  # beside this file, as Python runs it
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import phoenix_core as phoenix


class Slow(torch.optim.Optimizer):
    """Slow weights around another optimizer's fast ones."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.param_groups = inner, inner.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for parameter in group["params"] if group["count"] % 3 == 0 else ():
                slow = self.state[parameter].setdefault("slow", parameter.clone())
                parameter.copy_(slow.lerp_(parameter, 0.5))


class Counting(torch.optim.Optimizer):
    """Part of its state is a plain number, which it takes for a sign that it has begun."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            if not state:
                state["step"], state["mean"] = 0, torch.zeros_like(parameter)
            state["step"] += 1
            state["mean"].mul_(0.9).add_(parameter.grad)
            parameter.add_(state["mean"], alpha=-1e-2 / state["step"])


class Cached(layouts.Block):  # type: ignore[misc]
    """A cache that grows, a buffer that appears, and a scale that only its extra state has."""

    cache: torch.Tensor
    shift: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.ones(1))
        self.register_buffer("shift", None)
        self.scale = 1.0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.scale = 0.9 * self.scale + 0.1 * float(batch.detach().abs().max())
        if self.shift is None:
            self.shift = batch.detach().mean(0)
        if len(self.cache) < 9 and self.scale > 1.5:
            self.cache = torch.cat([self.cache, self.cache[-1:] * 0.99])
        result: torch.Tensor = super().forward((batch - self.shift) / self.scale)
        return result * self.cache[-1]

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


def _every_other(
    model: torch.nn.Module, always: torch.optim.Optimizer, sometimes: torch.optim.Optimizer, since: int = 0
) -> layouts.Job:
    """The gradients of the second optimizer's parameters add up over two steps; the first ones' are cleared."""

    def step(current: phoenix.Step) -> None:
        batch = torch.randn(layouts.BATCH, layouts.WIDTH)
        loss = layouts.error(model(batch), layouts.target(batch))
        current.record(loss=loss.item())
        loss.backward()
        always.step()
        always.zero_grad()
        if current.index % 2 and current.index >= since:
            sometimes.step()
            sometimes.zero_grad()

    return layouts.Job(step, {"model": model, "always": always, "sometimes": sometimes})


def keeps(_: phoenix.Session) -> layouts.Job:
    """Gradients that are kept, an optimizer inside of another, buffers that change their form, extra state."""
    inner = torch.nn.Sequential(layouts.Block(), Cached(), layouts.Block())
    model = DistributedDataParallel(inner, broadcast_buffers=False)
    slow = Slow(torch.optim.AdamW([*inner[0].parameters(), *inner[1].parameters()], lr=1e-3))
    return _every_other(model, slow, torch.optim.SGD(inner[2].parameters(), lr=1e-2, momentum=0.9))


def keeps_shards(_: phoenix.Session) -> layouts.Job:
    """The same of sharded parameters; the second optimizer begins in the step that is struck."""
    model = torch.nn.Sequential(layouts.Block(), Cached(), layouts.Block())
    for block in model:
        fully_shard(block)
    fully_shard(model)
    always = Counting([*model[0].parameters(), *model[1].parameters()])
    return _every_other(model, always, Counting(model[2].parameters()), since=8)


if __name__ == "__main__":
    layouts.LAYOUTS |= {layout.__name__: layout for layout in (keeps, keeps_shards)}
    layouts.main()
