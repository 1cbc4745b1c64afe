"""What was worked out of the history of all trials, for those who ask for it again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(kw_only=True)
class Remembered(Generic[Value]):
    """`most`: greatest sum of the weights of what is kept; what was asked for longest ago goes first.

    Nothing else is ever forgotten: a key names the state of the history too, of which its value was made.
    """

    most: int
    weight: Callable[[Value], int] = lambda value: 1
    _values: OrderedDict[Hashable, Value] = field(default_factory=OrderedDict)
    _weight: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def value(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Two that ask for the same at once may both make it. Raises what `make` raises, and remembers nothing then."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            if key not in self._values:
                self._values[key] = made
                self._weight += self.weight(made)
                while self._weight > self.most:
                    self._weight -= self.weight(self._values.popitem(last=False)[1])
        return made
