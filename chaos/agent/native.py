"""Stays inside of the interpreter's C code for a time, so that no line of Python runs in this thread.

Not one bytecode is executed between beginning and end: all parts of the loop are C functions. So no signal handler
runs, no exception can be thrown in, and while the GIL is held no other thread runs either. No compiler is needed.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import operator
import time
from collections import deque
from enum import StrEnum
from functools import partial
from typing import Any, Final

_SLEEP_US: Final = 5_000


class Held(StrEnum):
    """How the thread stays: busy with the GIL, asleep with the GIL, or asleep without it (a driver's call)."""

    BUSY = "busy"
    ASLEEP = "asleep"
    RELEASED = "released"


def stay(until: int, page: mmap.mmap, held: Held) -> int:
    """Until this time (monotonic ns), or until the page's first byte is 1; the nanoseconds that it was."""
    started = time.monotonic_ns()
    in_time = itertools.takewhile(until.__gt__, iter(time.monotonic_ns, -1))
    not_released = iter(partial(operator.getitem, page, 0), 1)
    parts: list[Any] = [in_time, not_released]
    if held is not Held.BUSY:
        library = ctypes.PyDLL(None) if held is Held.ASLEEP else ctypes.CDLL(None)
        parts.append(map(library.usleep, itertools.repeat(_SLEEP_US)))
    deque(zip(*parts, strict=False), maxlen=0)
    return time.monotonic_ns() - started
