"""How far this process has come in each stream of collectives: what the coordinator needs to see who waits for whom.

A *stream* is a sequence that its members go through in the same order: the collectives of one group, or the messages
from one rank to another (`"3>0"`, in ranks of the world).
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

SWEEP_AT: Final = 64
"""Works that a stream remembers before it looks which are over: memory stays bounded without a heartbeat too."""


def stream_of_group(logical_name: str) -> str:
    """Short, since each heartbeat carries it; a group's own name lists its members."""
    return hashlib.blake2s(logical_name.encode(), digest_size=4).hexdigest()


def stream_of_message(source: int, destination: int) -> str:
    return f"{source}>{destination}"


class _Stream:
    def __init__(self) -> None:
        self.entered = 0
        self.completed = 0
        self.pending: deque[tuple[Any, str]] = deque()
        self._sweeping = threading.Lock()

    def follow(self, work: Any, what: str) -> None:
        self.pending.append((work, what))
        if len(self.pending) > SWEEP_AT:
            self.sweep()

    def sweep(self) -> None:
        """Count those that are over, in order; asked by the heartbeat, since C++ waits without telling."""
        with self._sweeping:
            while self.pending and self.pending[0][0].is_completed():
                self.pending.popleft()
                self.completed += 1


class Watermark:
    """Entered and completed collectives by stream. The training thread enters, the heartbeat's thread asks."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def know(self, stream: str) -> None:
        """This process is a member of the stream, also where it never enters anything."""
        self._streams.setdefault(stream, _Stream())

    def through(self, stream: str, begin: Callable[[], tuple[Any, Any]], what: str = "") -> Any:
        """Begin a collective: `begin` gives the work to return, and the one that says when it is over.

        `what` it is in the same words on all members.

        It is counted first: one that an interruption parts from its count has begun all the same, and stays in flight,
        since nobody knows how far it came.
        """
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = _Stream()
        found.entered += 1
        try:
            work, watched = begin()
        except Exception:
            found.entered -= 1  # it was refused
            raise
        found.follow(watched, what)
        return work

    def counts(self) -> dict[str, tuple[int, int]]:
        """(entered, completed) of each stream."""
        streams = dict(self._streams)
        for stream in streams.values():
            stream.sweep()
        return {name: (stream.entered, stream.completed) for name, stream in streams.items()}

    def doing(self) -> dict[str, str]:
        """What the collective is that each stream waits in."""
        ahead = {name: next(iter(stream.pending.copy()), None) for name, stream in dict(self._streams).items()}
        return {name: first[1] for name, first in ahead.items() if first is not None}

    def told(self) -> dict[str, object]:
        """What a heartbeat says of it."""
        return {"streams": self.counts(), "doing": self.doing()}

    def at_rest(self, stream: str) -> int | None:
        """How many collectives of the stream are over; None while one is in flight."""
        found = self._streams[stream]
        found.sweep()
        return found.completed if found.completed == found.entered else None

    def pending(self) -> list[Any]:
        """The works that may be in flight."""
        return [work for stream in list(self._streams.values()) for work, _ in stream.pending.copy()]

    def reset(self) -> None:
        """A new generation counts from zero, as all its members do."""
        self._streams = {name: _Stream() for name in self._streams if ">" not in name}
