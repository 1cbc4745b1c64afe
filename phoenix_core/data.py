"""The batches of a DataLoader as part of the protected state: at a position that is saved and put back."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset

from phoenix_core import rng
from phoenix_core.errors import UsageError


class Batches:
    """Endless batches of `loader`, epoch after epoch: `protect(data=batches)`, then `next(batches)` inside the step.

    `epoch` and `position` (batches of this epoch that were given out) are its state, and what the global generators (of
    torch, numpy and Python) were as the epoch began. The loader and its sampler draw from these as they do without this
    class: ranks have the same order or others just as they are seeded. With `seed` the order follows from that and the
    epoch's number alone, and these generators are left as they were. A torch.Generator of the loader's or sampler's own
    (`generator`) is seeded for each epoch. A sampler with `set_epoch` is told the epoch. Put back to a position, the
    batches before it are not loaded again. With `num_workers` above 0, what a dataset draws in its worker processes is
    not drawn again: derive that from the index of the sample. Raises UsageError for a loader that has no positions.
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
        self._drawn: bytes | None = None
        self.epoch = 0
        self.position = 0
        self.begun = False
        """Whether a batch was given out in this process."""

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
                self.position, self.begun = self.position + 1, True
                self._iterator = iterator
                return batch
            self.epoch, self.position, self._drawn = self.epoch + 1, 0, None
        raise UsageError("Batches(loader): the loader gave no batch in a whole epoch; is the dataset empty?")

    def state_dict(self) -> dict[str, int | bytes | None]:
        return {"epoch": self.epoch, "position": self.position, "drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state != self.state_dict():
            self._iterator = None
        self.epoch, self.position, self._drawn = state["epoch"], state["position"], state.get("drawn")

    @contextmanager
    def _draws(self) -> Iterator[None]:
        """What is drawn here is what this epoch draws as it begins, whenever that was."""
        if self._seed is None and self._drawn is None:
            self._drawn = pickle.dumps(rng.capture_host())
            yield
            return
        with _left_as_they_are():
            if self._drawn is None:
                _seed_generators(hash((self._seed, self.epoch)))
            else:
                rng.restore_host(pickle.loads(self._drawn))
            yield

    def _open(self) -> Iterator[Any]:
        """The loader's iterator from `position` of `epoch` on."""
        sampler = self._order.sampler
        for each in (sampler, getattr(sampler, "sampler", None)):
            tell = getattr(each, "set_epoch", None)
            if tell is not None:
                tell(self.epoch)
        for generator, began in self._generators:
            generator.manual_seed(hash((self._seed or 0, self.epoch, began)))
        with self._draws():
            self._order.rest = rest = _Rest(islice(iter(sampler), self.position, None))
            try:
                if not self._loader.persistent_workers:
                    return iter(self._loader)
                # Such a loader draws once more the first time in a process, which is not to be seen afterwards.
                rest.begin()
                with _left_as_they_are():
                    return iter(self._loader)
            finally:
                self._order.rest = None
                rest.begin()


@contextmanager
def _left_as_they_are() -> Iterator[None]:
    """The global generators, whatever is drawn here."""
    now = rng.capture_host()
    try:
        yield
    finally:
        rng.restore_host(now)


def _seed_generators(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


class _Rest:
    """What is left of an epoch's order. A sampler draws from the global generators as its first item is asked for."""

    def __init__(self, order: Iterator[Any]) -> None:
        self._order = order
        self._held: list[Any] = []

    def begin(self) -> None:
        """Ask for it, and keep it for whoever asks next."""
        self._held = self._held or list(islice(self._order, 1))

    def __iter__(self) -> _Rest:
        return self

    def __next__(self) -> Any:
        return self._held.pop(0) if self._held else next(self._order)


class _Order:
    """A sampler whose passes can be, for a while, the rest of an epoch (a loader may begin one twice)."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.rest: _Rest | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler) if self.rest is None else self.rest

    def __len__(self) -> int:
        return len(self.sampler)
