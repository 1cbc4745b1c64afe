"""Small state that changes after a step's gradients are ready, when it has been sent to the holder already. Pure.

Survivors keep what they have; a rank that died meanwhile took its own with it. But most of what changes then (the count
of an average of the weights, a scale, a position that all ranks share) was the same on every rank before and is so
after. So what a twin has changed since is taken over for each item in which the two were equal.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from phoenix_core.kept import Payload
from phoenix_core.packing import pack

Item = tuple[str, ...]
Changed = Mapping[Item, tuple[bytes | None, bytes | None]]
"""By item: what it was when the gradients were ready, and what it became; None where it was not or is not there."""


def _items(small: Mapping[str, Any]) -> dict[Item, bytes]:
    """The parts of a small state that are compared one by one, as bytes."""
    found = {}
    for kind in ("random", "objects", "buffers", "extra"):
        for name, value in small[kind].items():
            found[kind, *(name if isinstance(name, tuple) else (name,))] = pack(value)
    return found


def changed(ready: Payload, now: Payload) -> Changed:
    """The items of a small state that are others now."""
    before, after = _items(pickle.loads(ready)), _items(pickle.loads(now))
    both = {item: (before.get(item), after.get(item)) for item in {**before, **after}}
    return {item: (was, became) for item, (was, became) in both.items() if was != became}


def drew(ready: Payload, now: Payload) -> bool:
    """Whether random numbers were drawn in between."""
    return pack(pickle.loads(ready)["random"]) != pack(pickle.loads(now)["random"])


def taken_over(small: Payload, theirs: Changed) -> bytes:
    """`small` as it would have become, by what a twin has changed of the same."""
    state = pickle.loads(small)
    mine = _items(state)
    for item, (was, became) in theirs.items():
        if mine.get(item) != was:
            continue
        kind, *path = item
        name = tuple(path) if kind in ("buffers", "extra") else path[0]
        if became is None:
            state[kind].pop(name, None)
        else:
            state[kind][name] = pickle.loads(became)
    return pack(state)
