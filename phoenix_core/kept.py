"""States of ranks in this process's memory: as many of each owner as its gate needs, and never one more.

A state is written into a *room*: memory that is counted, bounded and used again. What a room supersedes is dropped
before it is written, so a whole state never lies here a third time, not even while it arrives.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy

from phoenix_core.errors import SnapshotUnavailable

KEPT_BOUNDARIES: Final = 4
"""Small states kept per owner: a survivor may be one step behind, a broken step may have sent one ahead."""
SLACK: Final = 64
"""A room is larger than its state by this part of it: the head's length changes a little from step to step."""

Payload = bytes | memoryview


def checksum(payload: Payload) -> str:
    """Finds any single flipped bit and every truncation. Wrapping sums run at the speed of memory, SHA-256 does not."""
    whole = len(payload) // 8 * 8
    total = int(numpy.frombuffer(payload[:whole], dtype=numpy.uint64).sum())
    return f"{len(payload):x}-{total:x}-{zlib.crc32(payload[whole:]):x}"


def _memory(payload: Payload) -> int:
    """Bytes that are kept for a payload: of a room all of it."""
    return int(cast("Any", payload.obj).nbytes) if isinstance(payload, memoryview) else len(payload)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of host memory: now, and at most so far."""

    now: int
    most: int


class KeptStates:
    """States by owner and boundary, each with its checksum."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, tuple[Payload, str]]] = {}
        self._open: dict[int, memoryview] = {}
        self._free: dict[int, list[memoryview]] = {}
        self._most = 0
        self._lock = threading.Lock()

    def room(self, owner: int, boundary: int, size: int, limit: int) -> memoryview:
        """Memory for a state of `size` bytes, to be filled and then `put`, or given up by the next call for `owner`.

        With it the owner has no more than `limit` states. Dropped are those after `boundary` first, since the job has
        gone back to before them, then the oldest. The one of `boundary` itself stays until the new one is put.
        """
        with self._lock:
            kept, free = self._kept.setdefault(owner, {}), self._free.setdefault(owner, [])
            if owner in self._open:
                free.append(self._open.pop(owner))
            others = sorted(kept.keys() - {boundary}, key=lambda other: (other < boundary, other))
            while others and len(kept) >= limit:
                self._drop(owner, others.pop(0))
            fitting = [memory for memory in free if len(memory) >= size]
            memory = fitting[0] if fitting else None
            free.clear()  # what does not fit today will not fit again: states grow once, when optimizers get theirs
            if memory is None:
                memory = memoryview(cast("Any", numpy.empty(size + size // SLACK, dtype=numpy.uint8)))
            self._open[owner] = memory
            self._count()
            return memory[:size]

    def put(
        self, owner: int, boundary: int, payload: Payload, limit: int = KEPT_BOUNDARIES, sum_: str | None = None
    ) -> str:
        """Keep a state with its checksum, which is returned; `sum_` where it is known already."""
        sum_ = checksum(payload) if sum_ is None else sum_
        with self._lock:
            kept = self._kept.setdefault(owner, {})
            before = kept.get(boundary)
            kept[boundary] = (payload, sum_)
            if isinstance(payload, memoryview) and self._is_open(owner, payload):
                del self._open[owner]
            if before is not None:
                self._release(owner, before[0])
            for old in sorted(kept)[:-limit]:
                if old != boundary:  # the job may have gone back far behind what is kept
                    self._drop(owner, old)
            self._count()
        return sum_

    def forget_after(self, boundary: int) -> None:
        """The job goes back to `boundary`: what came later is void."""
        with self._lock:
            for owner, kept in self._kept.items():
                for later in [found for found in kept if found > boundary]:
                    self._drop(owner, later)

    def forget(self, owner: int, boundary: int) -> None:
        """It is not what it was taken for."""
        with self._lock:
            if boundary in self._kept.get(owner, {}):
                self._drop(owner, boundary)

    def keep_only(self, owners: Collection[int]) -> None:
        """Of all others nothing is needed here any more."""
        with self._lock:
            for mine in (self._kept, self._open, self._free):
                for other in mine.keys() - set(owners):
                    del mine[other]

    def get(self, owner: int, boundary: int) -> Payload:
        """Raises SnapshotUnavailable where it is not kept, or no longer what was kept; that is then dropped."""
        with self._lock:
            try:
                payload, sum_ = self._kept[owner][boundary]
            except KeyError:
                raise SnapshotUnavailable(f"no state of rank {owner} at step {boundary} is kept here") from None
            if checksum(payload) != sum_:
                self._drop(owner, boundary)
                raise SnapshotUnavailable(f"the state of rank {owner} at step {boundary} was damaged where it was kept")
            return payload

    def boundaries(self) -> dict[int, tuple[int, ...]]:
        with self._lock:
            return {owner: tuple(sorted(kept)) for owner, kept in self._kept.items() if kept}

    def memory(self) -> Memory:
        with self._lock:
            return Memory(now=self._count(), most=self._most)

    # ---------------------------------------------------------------- under the lock

    def _drop(self, owner: int, boundary: int) -> None:
        self._release(owner, self._kept[owner].pop(boundary)[0])

    def _release(self, owner: int, payload: Payload) -> None:
        """Nobody needs this payload: its room may be used again, unless a state that is kept lies in it too."""
        if not isinstance(payload, memoryview):
            return
        inside = [kept.obj for kept, _ in self._kept[owner].values() if isinstance(kept, memoryview)]
        if not any(obj is payload.obj for obj in inside) and not self._is_open(owner, payload):
            self._free.setdefault(owner, []).append(memoryview(payload.obj))

    def _is_open(self, owner: int, payload: memoryview) -> bool:
        return owner in self._open and self._open[owner].obj is payload.obj

    def _count(self) -> int:
        kept = sum(_memory(payload) for states in self._kept.values() for payload, _ in states.values())
        rooms = sum(len(memory) for memory in self._open.values())
        now = kept + rooms + sum(len(memory) for memories in self._free.values() for memory in memories)
        self._most = max(self._most, now)
        return now


class Ledger:
    """Says what snapshots take of this process's memory when that has changed by much: an eighth of what it was."""

    def __init__(self) -> None:
        self._told: tuple[int, int] | None = None

    def changed(self, own: KeptStates, *held: KeptStates) -> dict[str, Any] | None:
        """Fields of the event `memory_reported`, or None where there is no news."""
        mine, others = own.memory(), [states.memory() for states in held]
        now = (mine.now, sum(memory.now for memory in others))
        if self._told is not None and all(abs(a - b) * 8 <= b for a, b in zip(now, self._told, strict=True)):
            return None
        self._told = now
        return {
            "own_bytes": mine.now,
            "own_most": mine.most,
            "held_bytes": now[1],
            "held_most": sum(memory.most for memory in others),
            "held_of": sorted({owner for states in held for owner in states.boundaries()}),
        }
