"""Virtual time: a heap of events, and links that keep their order while others overtake them."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

LATEST_S = 0.4
"""No message is later: hangs are told from slow links by time alone, so the limit of a hang must be longer."""

Action = Callable[..., None]


class Clock:
    """Events at the same instant happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._planned = 0

    def after(self, delay: float, action: Action, *args: Any) -> None:
        self._planned += 1
        heappush(self._heap, (self.now + delay, self._planned, action, args))

    def next_at(self) -> float:
        """When the next event is due; infinitely late where there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def step(self) -> None:
        self.now, _, action, args = heappop(self._heap)
        self.handled += 1
        action(*args)


class Link:
    """One TCP connection in one direction: each message is delayed, none overtakes another."""

    def __init__(self, clock: Clock, rng: random.Random, delay_s: float) -> None:
        self._clock, self._rng, self._delay_s = clock, rng, delay_s
        self._last = 0.0
        self.open = True

    def send(self, action: Action, *args: Any) -> None:
        """`action` is called at the other end, unless the link is cut before."""
        now = self._clock.now
        # Now and then a message is late by far: a retransmission, or a receiver that was not scheduled.
        slow = 20.0 if self._rng.random() < 0.02 else 1.0
        delay = min(self._rng.random() * self._delay_s * slow, LATEST_S)
        self._last = max(self._last, now + delay)
        self._clock.after(self._last - now, self._arrive, action, args)

    def _arrive(self, action: Action, args: tuple[Any, ...]) -> None:
        if self.open:
            action(*args)

    def cut(self) -> None:
        self.open = False
