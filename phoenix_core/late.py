"""Small state that changes after a step's first gradients are reduced, when it has been sent to the holder. Pure.

Before the optimizer: a part that is computed again in the backward pass counts its batch in a BatchNorm once more, and
its random numbers are those of the forward pass. All ranks find out in the loop's first step, and *agree*, whether any
of them has such a habit: then states are captured before the optimizer, and a barrier makes them safe.

After the optimizer: survivors keep what they have; a rank that died meanwhile took its own with it. But most of what
changes then (the count of an average of the weights, a scale, a position that all ranks share) was the same on every
rank before and is so after. So what a twin has changed since is taken over for each item in which the two were equal.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phoenix_core.kept import Payload
from phoenix_core.packing import pack

Item = tuple[str, ...]
Changed = Mapping[Item, tuple[tuple[bytes | None, ...], bytes | None]]
"""By item: what it was whenever the state was sent before the optimizer, and what it became; None: it was not there."""


@dataclass(frozen=True)
class Told:
    """What a replacement must know of its twin's small state."""

    late: bool | None = None
    """What the ranks have agreed on (see Watch); None before."""
    changed: Changed = field(default_factory=dict)
    left: int | None = None
    """The boundary at which the script has left its loop by itself (`break`), and so will the replacement's."""


class Watch:
    """This rank's small state through one step: whether it changes once a backward pass has begun.

    All reductions are looked at, since which is the first depends on DDP's buckets, which are others in later steps.
    """

    def __init__(self) -> None:
        self._pass = -1
        self._first = b""
        self._changed = False

    def see(self, backward: int, small: bytes) -> None:
        """`small` it is at an instant of the backward pass of that number. Only the last pass of a step counts: between
        two of them the script draws batches, and after the last one's first reduction nothing is sent."""
        if backward != self._pass:
            self._pass, self._first, self._changed = backward, small, False
        self._changed = self._changed or small != self._first

    def vote(self, small: bytes) -> int:
        """`small` it is before the optimizer. All ranks take the greatest vote: 2 it changed, 1 it did not, 0 this step
        had no backward pass."""
        return 0 if self._pass == -1 else 1 + (self._changed or small != self._first)


def agreed(greatest_vote: int) -> bool | None:
    """Whether small states are captured before the optimizer from the next step on; None: vote again there."""
    return None if greatest_vote == 0 else greatest_vote == 2


def _items(small: Mapping[str, Any]) -> dict[Item, bytes]:
    """The parts of a small state that are compared one by one, as bytes."""
    found = {}
    for kind in ("random", "objects", "buffers", "extra"):
        for name, value in small[kind].items():
            found[kind, *(name if isinstance(name, tuple) else (name,))] = pack(value)
    return found


def changed(sent: Sequence[Payload], now: Payload) -> Changed:
    """The items of a small state that are others now than in any of those that were `sent`."""
    before, after = [_items(pickle.loads(small)) for small in sent], _items(pickle.loads(now))
    every = dict.fromkeys(item for small in (after, *before) for item in small)
    were = {item: tuple(s.get(item) for s in before if s.get(item) != after.get(item)) for item in every}
    return {item: (was, after.get(item)) for item, was in were.items() if was}


def drew(ready: Payload, now: Payload) -> bool:
    """Whether random numbers were drawn in between."""
    return pack(pickle.loads(ready)["random"]) != pack(pickle.loads(now)["random"])


def taken_over(small: Payload, theirs: Changed) -> Payload:
    """`small`, which was sent before the optimizer, as it would have become, by what a twin has changed of the same."""
    if not theirs:
        return small
    state = pickle.loads(small)
    mine = _items(state)
    for item, (was, became) in theirs.items():
        if mine.get(item) not in was:
            continue
        kind, *path = item
        name = tuple(path) if kind in ("buffers", "extra") else path[0]
        if became is None:
            state[kind].pop(name, None)
        else:
            state[kind][name] = pickle.loads(became)
    return pack(state)
