"""Reads the event files of a directory as they grow, within a millisecond, at little cost.

inotify tells which files grew, so a wake-up reads those and no others. Where the kernel refuses inotify (its limits),
`fileno()` is None and the caller polls every `POLL_S` instead.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from phoenix_core.events import Event

POLL_S: Final = 0.001
_MODIFY, _MOVED_TO, _CREATE, _OVERFLOW = 0x2, 0x80, 0x100, 0x4000
_HEADER: Final = struct.Struct("iIII")


class EventWatch:
    """Everything appended to `*.jsonl` of a directory since the last `read`. Close it (or use `with`)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._files: dict[str, _Growing] = {}
        self._inotify = inotify_on(directory, _MODIFY | _MOVED_TO | _CREATE)
        self._unseen = True  # what was there before the watch is read by the first call

    def fileno(self) -> int | None:
        """Readable when something grew; None without inotify."""
        return self._inotify

    def read(self, *, skip: Iterable[str] = ()) -> list[Event]:
        """New events of all files, ordered by `at`. Kinds in `skip` are dropped without being parsed."""
        prefixes = tuple(f'{{"kind":"{kind}"'.encode() for kind in skip)
        events: list[Event] = []
        for name in self._grown():
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _Growing(self._directory / name)
            events += file.read(prefixes)
        return events if len(events) < 2 else sorted(events, key=lambda event: event.at)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._inotify is not None:
            os.close(self._inotify)
            self._inotify = None

    def __enter__(self) -> EventWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grown(self) -> Iterable[str]:
        names = self._told()
        if names is None or self._unseen:
            self._unseen = False
            return sorted(name for name in os.listdir(self._directory) if name.endswith(".jsonl"))
        return sorted(names)

    def _told(self) -> set[str] | None:
        """Names that inotify reports; None if it cannot say (no inotify, or its queue overflowed)."""
        if self._inotify is None:
            return None
        try:
            block = os.read(self._inotify, 65536)
        except BlockingIOError:
            return set()
        names: set[str] = set()
        position, overflowed = 0, False
        while position < len(block):
            _, mask, _, length = _HEADER.unpack_from(block, position)
            position += _HEADER.size
            name = block[position : position + length].rstrip(b"\0").decode(errors="surrogateescape")
            position += length
            overflowed = overflowed or bool(mask & _OVERFLOW)
            if name.endswith(".jsonl"):
                names.add(name)
        return None if overflowed else names


class _Growing:
    """One file, kept open, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0

    def read(self, prefixes: tuple[bytes, ...]) -> list[Event]:
        events: list[Event] = []
        while block := os.pread(self._fd, 1 << 20, self._offset):
            end = block.rfind(b"\n") + 1
            if end == 0:
                break  # an unfinished line stays for later
            self._offset += end
            for line in block[:end].splitlines():
                if prefixes and line.startswith(prefixes):
                    continue
                try:
                    events.append(Event.from_json(line))
                except (ValueError, TypeError):
                    continue  # a full disk can cut a record; the records after it are still good
        return events

    def close(self) -> None:
        os.close(self._fd)


def inotify_on(directory: Path, mask: int) -> int | None:
    """A descriptor that tells of these changes in a directory; None where the kernel refuses it."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "inotify_init1"):
        return None
    descriptor = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor < 0:
        return None
    if int(library.inotify_add_watch(descriptor, os.fsencode(directory), mask)) < 0:
        os.close(descriptor)
        return None
    return descriptor
