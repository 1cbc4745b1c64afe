"""Batches: a DataLoader's order, at any position, without disturbing anybody's random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, TensorDataset

from phoenix_core import rng
from phoenix_core.data import Batches
from phoenix_core.errors import UsageError


class Numbers(Dataset[int]):
    """Samples that are their own index; `read` lists those that were loaded in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


def shuffled(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(10), batch_size=3, shuffle=True, **options)


def distributed() -> DataLoader[Any]:
    numbers = Numbers(24)
    return DataLoader(numbers, batch_size=3, sampler=DistributedSampler(numbers, num_replicas=2, rank=1))


def one_by_one() -> DataLoader[Any]:
    return DataLoader(Numbers(5), batch_size=None, shuffle=True)


def workers() -> DataLoader[Any]:
    return shuffled(num_workers=2)


def kept_workers() -> DataLoader[Any]:
    return shuffled(num_workers=1, persistent_workers=True)


def own_generator() -> DataLoader[Any]:
    return shuffled(generator=torch.Generator().manual_seed(4))


class Drawn(Sampler[int]):
    """An order drawn by `draw` as a pass begins."""

    generator = numpy.random.default_rng(1)  # of that name, and none of torch's

    def __init__(self, draw: Callable[[], list[int]]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw())

    def __len__(self) -> int:
        return 10


def by_numpy() -> DataLoader[Any]:
    return DataLoader(Numbers(10), batch_size=3, sampler=Drawn(lambda: numpy.random.permutation(10).tolist()))


def by_python() -> DataLoader[Any]:
    return DataLoader(Numbers(10), batch_size=3, sampler=Drawn(lambda: random.sample(range(10), 10)))


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def taken(batches: Batches, count: int) -> list[list[int]]:
    return [torch.as_tensor(next(batches)).flatten().tolist() for _ in range(count)]


@pytest.mark.parametrize(
    ("make", "position"),
    [
        *((make, position) for make in (shuffled, distributed, one_by_one) for position in (0, 2, 4, 5, 9)),
        *((make, position) for make in (workers, kept_workers) for position in (2, 5)),
        *((make, position) for make in (own_generator, by_numpy, by_python) for position in (0, 2, 5)),
    ],
)
def test_from_any_position_the_same_batches_follow(make: Any, position: int) -> None:
    seed = 4 if position % 2 else None
    seed_all(9)
    undisturbed = taken(Batches(make(), seed), 12)
    assert undisturbed[0] != undisturbed[len(make())]  # another epoch, another order
    seed_all(9)
    before, replaced = Batches(make(), seed), Batches(make(), seed)
    assert taken(before, position) == undisturbed[:position]
    state, generators = before.state_dict(), rng.capture()
    assert taken(before, 2) == undisturbed[position : position + 2]
    for batches in (before, replaced):  # a survivor that goes back, and a spare
        batches.load_state_dict(state)
        rng.restore(generators)  # as all small state is put back
        assert taken(batches, 12 - position) == undisturbed[position:]


@pytest.mark.parametrize("make", [shuffled, distributed, one_by_one, by_numpy, by_python])
def test_without_a_seed_the_order_is_that_of_the_plain_loader(make: Any) -> None:
    seed_all(3)
    plain = make()
    expected = [torch.as_tensor(batch).flatten().tolist() for _ in range(2) for batch in _epoch(plain, _)]
    drawn = torch.rand(2)
    seed_all(3)
    assert taken(Batches(make()), len(expected)) == expected
    assert torch.equal(torch.rand(2), drawn), "and it has drawn no more"


def _epoch(loader: DataLoader[Any], number: int) -> Iterator[Any]:
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(number)
    yield from loader


def test_a_position_that_is_put_back_is_no_batch_that_was_taken() -> None:
    batches = Batches(shuffled())
    batches.load_state_dict({"epoch": 3, "position": 2})
    assert not batches.begun
    next(batches)
    assert batches.begun


def test_ranks_have_the_same_order_or_others_as_they_have_seeded_torch() -> None:
    def order(generator: int, seed: int | None = None) -> list[list[int]]:
        torch.manual_seed(generator)
        return taken(Batches(shuffled(), seed), 4)

    assert order(1) != order(2) and order(1) == order(1)
    assert order(1, seed=3) == order(2, seed=3) != order(1, seed=4)


def test_what_workers_draw_differs_as_ranks_have_seeded_torch() -> None:
    def drawn(generator: int) -> list[list[float]]:
        torch.manual_seed(generator)
        loader = DataLoader(Noise(), batch_size=2, num_workers=1, sampler=DistributedSampler(Noise(), 2, 0))
        return [batch.tolist() for batch in islice(Batches(loader), 2)]

    assert drawn(1) != drawn(2) and drawn(1) == drawn(1)


def test_batches_before_the_position_are_not_loaded() -> None:
    loader = shuffled()
    batches = Batches(loader)
    batches.load_state_dict({"epoch": 3, "position": 2})
    next(batches)
    assert isinstance(loader.dataset, Numbers) and len(loader.dataset.read) == 3


def test_a_batch_whose_loading_was_interrupted_is_given_out_again() -> None:
    """The sampler has gone on by then, the position has not."""

    class Interrupted(BaseException):
        pass

    class Slow(TensorDataset):
        broken = False

        def __getitem__(self, index: int) -> Any:
            if index == 5 and not self.broken:
                self.broken = True
                raise Interrupted
            return (self.tensors[0][index],)

    batches = Batches(DataLoader(Slow(torch.arange(12)), batch_size=2))
    given = [next(batches)[0].tolist() for _ in range(2)]
    before = batches.state_dict()
    with pytest.raises(Interrupted):
        next(batches)
    batches.load_state_dict(before)
    assert [*given, next(batches)[0].tolist()] == [[0, 1], [2, 3], [4, 5]]


def test_the_global_generator_is_left_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    taken(Batches(shuffled(), seed=1), 9)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_loader_can_be_used_as_before() -> None:
    loader = shuffled()
    batches = Batches(loader)
    batches.load_state_dict({"epoch": 0, "position": 3})
    next(batches)
    assert len(batches) == len(loader) == 4
    assert sorted(int(i) for batch in loader for i in batch) == list(range(10))


class Noise(Dataset[Any]):
    """What augmentation in a worker draws."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1)

    def __len__(self) -> int:
        return 8


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


def test_a_stream_has_no_positions() -> None:
    with pytest.raises(UsageError, match="IterableDataset has no positions"):
        Batches(DataLoader(Stream()))


def test_an_empty_epoch_is_refused_rather_than_begun_for_ever() -> None:
    with pytest.raises(UsageError, match="no batch in a whole epoch"):
        next(Batches(DataLoader(Numbers(2), batch_size=3, drop_last=True)))


class Wrapped(DataLoader[Any]):
    """As accelerate's: the loader's own iterator begins only with the first batch."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


def test_a_loader_that_iterates_in_its_own_way_is_refused() -> None:
    with pytest.raises(UsageError, match="hand over the plain DataLoader"):
        Batches(Wrapped(Numbers(4)))
