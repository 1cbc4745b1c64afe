"""One JSON object per line between coordinator, agents and workers, and how processes are tied together."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

LINE_LIMIT: Final = 64 * 1024 * 1024
"""A world of 16,384 ranks with addresses is about 1 MB; anything near this limit is not ours."""

COORDINATOR_EVENTS: Final = "events/coordinator.jsonl"
"""Where the coordinator writes, below a run directory."""

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


def encode(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Raises ValueError for a line that is not a JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"not a message: {line[:80]!r}")
    return message


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Messages until the other side is gone, however it went."""
    while True:
        try:
            line = await reader.readline()
        except (ConnectionError, OSError):
            return
        if not line.endswith(b"\n"):
            return
        yield decode(line)


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends `sig` to the child when its parent ends, however that ends."""

    def bind() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)

    return bind
