"""Counts failed logins by address, and says when it is enough. Pure: told of the time."""

from __future__ import annotations

from collections import OrderedDict, deque


class Attempts:
    """At most `most` failures of one address within `within_s`; remembers at most `addresses` of them."""

    def __init__(self, *, most: int = 10, within_s: float = 60.0, addresses: int = 10_000) -> None:
        self._most = most
        self._within_s = within_s
        self._addresses = addresses
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str, now: float) -> float:
        """How long this address has to wait before it may try again; 0 if it may now."""
        failed = self._failed.get(address)
        if failed is None:
            return 0.0
        while failed and now - failed[0] >= self._within_s:
            failed.popleft()
        return 0.0 if len(failed) < self._most else self._within_s - (now - failed[0])

    def fail(self, address: str, now: float) -> None:
        failed = self._failed.setdefault(address, deque(maxlen=self._most))
        failed.append(now)
        self._failed.move_to_end(address)
        while len(self._failed) > self._addresses:
            self._failed.popitem(last=False)
