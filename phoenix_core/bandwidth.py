"""How fast snapshots may be sent to their holders, lest they take the network from training."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Final

from phoenix_core.errors import UsageError

CHUNK: Final = 1 << 20
"""Bytes that are sent in one go: at most, and where nothing limits them."""
LEAST_CHUNK: Final = 1 << 14
CHUNKS_PER_S: Final = 20
"""Under a limit a chunk is a twentieth of a second's bytes: so long at the most a sender takes to hear of a change."""

_UNITS: Final = {
    **{f"{prefix}B": float(1000**power) for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": float(1024**power) for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
    **{f"{prefix}bit": 1000**power / 8 for power, prefix in enumerate(("", "k", "M", "G", "T"))},
}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(" + "|".join(_UNITS) + r")(?:/s)?")


def parse_rate(text: str) -> float | None:
    """Bytes per second of "200MB/s", "25 Gbit/s"; None, that is no limit, of "0" and "none". Raises UsageError."""
    if text.strip() in ("0", "none"):
        return None
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{text}: not a rate; give a number with its unit, as 200MB/s, 512KiB/s or 10Gbit/s, or 0 for no limit"
        )
    rate = float(found[1]) * _UNITS[found[2]]
    if 0 < rate < LEAST_CHUNK:
        raise UsageError(f"{text}: that is less than {LEAST_CHUNK >> 10} KiB/s, and no replica would ever be complete")
    return rate or None


def rate_text(rate: float) -> str:
    """Three digits at the most, rounded up: what is said to be needed must be enough."""
    for power, unit in ((3, "GB/s"), (2, "MB/s"), (1, "kB/s")):
        if rate >= 1000**power:
            value = rate / 1000**power
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{-(-value * 10**digits // 1) / 10**digits:g} {unit}"
    return f"{-(-rate // 1):g} B/s"


class TokenBucket:
    """`rate` bytes per second on average, at most `burst` more than that in any interval. Of `now` it is told."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._now = float(burst), now

    def take(self, size: int, now: float) -> float:
        """Seconds to wait before `size` bytes, at most `burst`, may be sent."""
        self._tokens = min(float(self.burst), self._tokens + (now - self._now) * self.rate) - size
        self._now = now
        return max(0.0, -self._tokens / self.rate)


class Throttle:
    """The limit of one worker, over all the holders it ever sends to."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`rate` in bytes per second, None for no limit. `wait(event, seconds)` returns early once the event is set."""
        self.rate = rate
        self.chunk = CHUNK if rate is None else min(CHUNK, max(LEAST_CHUNK, int(rate / CHUNKS_PER_S)))
        self._clock, self._wait = clock, wait
        self._lock = threading.Lock()
        self._bucket = TokenBucket(rate, self.chunk, clock()) if rate is not None else None

    def pass_on(self, size: int, ended: threading.Event) -> None:
        """Return once `size` bytes, at most a chunk, may be sent, or once `ended` is set."""
        if self._bucket is None:
            return
        with self._lock:
            delay = self._bucket.take(size, self._clock())
        if delay:
            self._wait(ended, delay)


def too_slow(rate: float, sent: int, step_s: float, waited_s: float) -> str | None:
    """What to tell of a step of `step_s` seconds, of which training waited `waited_s` for `sent` bytes; None: nothing.

    A wait of a twentieth of the step is let pass.
    """
    if waited_s < step_s / 20:
        return None
    least = sent / max(step_s - waited_s, 1e-3)
    return (
        f"--replica-bandwidth {rate_text(rate)} is too low for this job: a rank sends {sent / 1e6:.3g} MB in a step, "
        f"which takes {step_s - waited_s:.2g} s without it; in this one training waited {waited_s:.2g} s for that. At "
        f"least {rate_text(least)} is needed."
    )
