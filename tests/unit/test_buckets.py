"""The buckets that a module's next step has in the undisturbed run, where modules are not trained in the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from phoenix_core.ddp import Buckets, Layout, _first_buckets, layout


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Odd(torch.nn.Module):
    """Registered in another order than used, so that DDP's first buckets are not those that it moves to."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)))  # type: ignore[no-any-return]


class Rank:
    """Two modules; a step trains those that it is told to."""

    def __init__(self) -> None:
        self.modules = [DistributedDataParallel(Odd(), bucket_cap_mb=0.001) for _ in range(2)]
        self.buckets = Buckets(lambda: self.modules)

    def train(self, *numbers: int, passes: int = 1) -> list[list[list[int]]]:
        """Forward and backward, without the end of the step; the buckets that each module reduced."""
        for i in numbers * passes:
            self.modules[i](torch.randn(2, 16)).sum().backward()
        return [layout(self.modules[i]).buckets for i in numbers]

    def step(self, *numbers: int) -> list[list[list[int]]]:
        reduced = self.train(*numbers)
        self.buckets.committed()
        return reduced

    def recover(self) -> list[Layout]:
        layouts = self.buckets.of_next_step()
        self.buckets.put_back(layouts)
        return layouts


def undisturbed(steps: int) -> list[list[list[list[int]]]]:
    calm = Rank()
    calm.buckets.begin()
    return [calm.step(i % 2) for i in range(steps)]


@pytest.mark.parametrize("passes", [0, 1, 2], ids=["before", "whole", "twice"])
@pytest.mark.parametrize("broken", range(5))
def test_each_module_has_the_buckets_of_the_undisturbed_run(broken: int, passes: int) -> None:
    """A step breaks, after as many passes of its module, and again two steps later; a replacement goes on alike."""
    wanted = undisturbed(9)
    assert wanted[0] != wanted[2] == wanted[4]
    rank, replacement = Rank(), Rank()
    rank.buckets.begin()
    for i in range(broken):
        assert rank.step(i % 2) == wanted[i]
    rank.train(broken % 2, passes=passes)
    replacement.buckets.put_back(rank.recover())
    for i in range(broken, broken + 2):
        assert rank.step(i % 2) == wanted[i] == replacement.step(i % 2)
    assert rank.recover() == replacement.recover()
    for i in range(broken + 2, 9):
        assert rank.step(i % 2) == wanted[i] == replacement.step(i % 2)


def test_a_module_that_waits_for_its_first_step_keeps_no_other_from_settling() -> None:
    rank = Rank()
    rank.buckets.begin()
    moving = []
    for _ in range(3):
        rank.step(0)
        moving.append(set(rank.buckets.moving))
    assert moving == [{0}, set(), set()]
    assert [its.settled for its in rank.buckets.now()] == [True, False]


@pytest.mark.parametrize("kind", [Odd, lambda: torch.nn.Sequential(Odd(), Odd())])
def test_first_buckets_are_computed_as_the_module_does(kind: Callable[[], torch.nn.Module]) -> None:
    """A reducer with sparse gradients does not show them before its first reduction."""
    module = DistributedDataParallel(kind(), bucket_cap_mb=0.001)
    assert _first_buckets(module) == layout(module).buckets


def test_a_module_with_sparse_gradients_is_begun_and_recovered() -> None:
    words = torch.nn.Embedding(8, 16, sparse=True)
    rank = Rank()
    rank.modules = [DistributedDataParallel(torch.nn.Sequential(words, Odd()), bucket_cap_mb=0.001)]
    rank.buckets.begin()
    for _ in range(3):
        rank.modules[0](torch.arange(2)).sum().backward()
        rank.buckets.committed()
    layouts = rank.recover()
    rank.modules[0](torch.arange(2)).sum().backward()
    assert layout(rank.modules[0]).buckets == layouts[0].buckets
