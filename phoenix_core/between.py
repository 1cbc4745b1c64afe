"""What the loop's code does between two steps: done once too often by a rank whose step broke, and undone here.

Such a rank leaves the block without having ended its step, runs what follows in the loop, and comes to the same step
again. Small state is put back then as a whole. Of the parameters only those that the loop changes between steps, an
average of the weights for instance, are worth a copy; they are known from the steps before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from phoenix_core import fsdp
from phoenix_core.advice import CHANGED_OUTSIDE, say_once
from phoenix_core.snapshot import Protected


def versions(parameters: Iterable[torch.nn.Parameter]) -> list[int]:
    """How often each was changed in place, which torch counts for autograd."""
    return [0 if parameter.is_inference() else parameter._version for parameter in parameters]


def changed_since(before: Sequence[int], parameters: Sequence[torch.nn.Parameter]) -> set[int]:
    """The numbers of those that were changed in place since `versions` told `before`."""
    return {i for i, (old, new) in enumerate(zip(before, versions(parameters), strict=True)) if old != new}


class BetweenSteps:
    """Made for the loop of one rank, which tells it where it is."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._versions: list[int] | None = None
        self._changed: set[int] = set()
        self._copies: dict[int, torch.Tensor] = {}
        self._begins_with: tuple[bytes, bytes] | None = None

    @property
    def again(self) -> bool:
        """Whether the loop is on its way to a step that broke."""
        return self._begins_with is not None

    def left(self) -> None:
        """A step has ended; from here on it is the loop's code that runs."""
        self._protected.gradients.left()
        self._versions = versions(self._protected.listed_parameters())

    def broke(self, start: bytes, small: bytes) -> None:
        """A step broke, and the state is again that of its beginning: `start` and `small` as in Protected."""
        self._begins_with = start, small
        self._copies = {i: self._tensor(i).clone() for i in self._changed}
        self.left()

    def arrive(self) -> None:
        """The loop comes to its next step, or once more to the one that broke."""
        changed = self._since_left()
        if self._begins_with is None:
            self._changed |= changed
        else:
            self._undo(changed, *self._begins_with)
        self._protected.gradients.arrive()

    def _undo(self, changed: set[int], start: bytes, small: bytes) -> None:
        if changed - self._copies.keys():
            say_once(CHANGED_OUTSIDE)
        with torch.no_grad():
            for i, copy in self._copies.items():
                self._tensor(i).copy_(copy)
        self._protected.load_start(start)
        self._protected.load_small(small)
        self._copies, self._versions, self._begins_with = {}, None, None

    def _since_left(self) -> set[int]:
        return set() if self._versions is None else changed_since(self._versions, self._protected.listed_parameters())

    def _tensor(self, index: int) -> torch.Tensor:
        return fsdp.local(self._protected.listed_parameters()[index]).detach()
