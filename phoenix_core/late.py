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

Changed = Mapping[tuple[str, ...], tuple[bytes, bytes]]
"""By item: what it was when the gradients were ready, and what it became."""


def _items(small: Mapping[str, Any]) -> dict[tuple[str, ...], bytes]:
    """The parts of a small state that are compared one by one, as bytes."""
    found = {(kind, name): pack(value) for kind in ("random", "objects") for name, value in small[kind].items()}
    return {**found, **{("buffers", *key): content for key, content in small["buffers"].items()}}


def changed(ready: Payload, now: Payload) -> Changed:
    """The items of a small state that are others now."""
    before, after = _items(pickle.loads(ready)), _items(pickle.loads(now))
    return {item: (was, after[item]) for item, was in before.items() if after.get(item, was) != was}


def drew(ready: Payload, now: Payload) -> bool:
    """Whether random numbers were drawn in between."""
    return pack(pickle.loads(ready)["random"]) != pack(pickle.loads(now)["random"])


def taken_over(small: Payload, theirs: Changed) -> bytes:
    """`small` as it would have become, by what a twin has changed of the same."""
    state = pickle.loads(small)
    for item, content in _items(state).items():
        was, became = theirs.get(item, (content, content))
        if was == content:
            kind, *name = item
            if kind == "buffers":
                state[kind][tuple(name)] = became
            else:
                state[kind][name[0]] = pickle.loads(became)
    return pack(state)
