"""The batches of a DataLoader as part of the protected state: at a position that is saved and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset

from phoenix_core.errors import UsageError


class Batches:
    """Endless batches of `loader`, epoch after epoch: `protect(data=batches)`, then `next(batches)` inside the step.

    `epoch` and `position` (batches of this epoch that were given out) are its state, and what its order is drawn from:
    a number that each epoch draws from torch's global generator as it begins, so that ranks have the same order or
    others just as they have seeded that, as with the plain loader. With `seed` the order follows from that and the
    epoch's number alone. Samplers may draw from any global generator (of torch, numpy or Python), which is left as it
    was; a torch.Generator of the loader's or sampler's own (`generator`) is seeded for each epoch. A sampler with
    `set_epoch` is told the epoch. Put back to a position, the batches before it are not loaded again. With
    `num_workers` above 0, what a dataset draws in its worker processes is not drawn again: derive that from the index
    of the sample. Raises UsageError for a loader that has no positions.
    """

    def __init__(self, loader: DataLoader[Any], seed: int | None = None) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise UsageError(
                "Batches(loader): an IterableDataset has no positions to come back to; protect an object of your own "
                "with state_dict() and load_state_dict() that counts what it has given out"
            )
        self._loader = loader
        self._seed = seed
        if type(loader).__iter__ is not DataLoader.__iter__:
            raise UsageError(
                f"Batches(loader): a {type(loader).__name__} iterates in a way of its own; hand over the plain "
                "DataLoader, before another library wraps it"
            )
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self._order = _Order(getattr(loader, name))
        # The one way to a position that loads nothing; the loader refuses plain assignment once it is made.
        object.__setattr__(loader, name, self._order)
        draws = (loader, self._order.sampler, getattr(self._order.sampler, "sampler", None))
        own = {id(found): found for found in (getattr(each, "generator", None) for each in draws)}
        own_of_torch = [found for found in own.values() if isinstance(found, torch.Generator)]
        self._generators = [(generator, generator.initial_seed()) for generator in own_of_torch]
        self._iterator: Iterator[Any] | None = None
        self._drawn: int | None = None
        self.epoch = 0
        self.position = 0

    @property
    def begun(self) -> bool:
        """Whether a batch was given out."""
        return self.epoch + self.position > 0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        """The next batch, of the next epoch where this one is over. Raises UsageError where an epoch has none."""
        for _ in range(2):
            # An iterator that a failure elsewhere interrupts in here has gone on or not: it is not kept.
            iterator, self._iterator = self._open() if self._iterator is None else self._iterator, None
            for batch in iterator:
                self.position += 1
                self._iterator = iterator
                return batch
            self.epoch, self.position, self._drawn = self.epoch + 1, 0, None
        raise UsageError("Batches(loader): the loader gave no batch in a whole epoch; is the dataset empty?")

    def state_dict(self) -> dict[str, int | None]:
        return {"epoch": self.epoch, "position": self.position, "drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state != self.state_dict():
            self._iterator = None
        self.epoch, self.position, self._drawn = state["epoch"], state["position"], state.get("drawn")

    def _open(self) -> Iterator[Any]:
        """The loader's iterator from `position` of `epoch` on."""
        sampler = self._order.sampler
        for each in (sampler, getattr(sampler, "sampler", None)):
            tell = getattr(each, "set_epoch", None)
            if tell is not None:
                tell(self.epoch)
        for generator, began in self._generators:
            generator.manual_seed(hash((self._seed or 0, self.epoch, began)))
        if self._seed is None and self._drawn is None:
            self._drawn = int(torch.empty((), dtype=torch.int64).random_())
        with _drawn_from(hash((self._seed, self.epoch)) if self._drawn is None else self._drawn):
            order = iter(sampler)
            first = list(islice(order, 1))  # now: it is here that a sampler draws from the global generator
            self._order.rest = islice(chain(first, order), self.position, None)
            try:
                return iter(self._loader)
            finally:
                self._order.rest = None


@contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """What is drawn here from the global generators follows from `seed`, and they are as before afterwards."""
    python, numbers = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(numbers)


class _Order:
    """A sampler whose passes can be, for a while, the rest of an epoch (a loader may begin one twice)."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.rest: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler) if self.rest is None else self.rest

    def __len__(self) -> int:
        return len(self.sampler)
