"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

NONE = "–"
THIN = "\u202f"
"""A narrow no-break space: groups digits without the ambiguity of comma and point."""


def milliseconds(seconds: float | None, unit: str = f"{THIN}ms") -> str:
    """`0.0123` -> `12 ms`; below 10 ms with one decimal. Always milliseconds, so that columns compare."""
    if seconds is None:
        return NONE
    value = seconds * 1000
    digits = f"{value:.1f}" if abs(value) < 9.95 else f"{value:,.0f}".replace(",", THIN)
    return digits + unit


def duration(seconds: float | None) -> str:
    """`75.2` -> `1 min 15 s`; for spans where a millisecond does not matter."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f}{THIN}s" if seconds < 10 else f"{seconds:.0f}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{THIN}min {rest}{THIN}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}{THIN}h {minutes}{THIN}min" if hours < 48 else f"{hours // 24}{THIN}d {hours % 24}{THIN}h"


def on_clock(seconds: float | None) -> str:
    """A time on the run's clock in one unit, for a narrow column: `70 s`, `12 min`, `5 h`."""
    if seconds is None:
        return NONE
    if seconds >= 6000:
        return f"{seconds / 3600:.0f}{THIN}h"
    return f"{seconds / 60:.0f}{THIN}min" if seconds >= 100 else f"{seconds:.0f}{THIN}s"


def parse_time(value: str | None) -> datetime | None:
    """An ISO 8601 time of the API; one without a zone is UTC."""
    if not value:
        return None
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def clock(value: str | None) -> str:
    """`2026-11-29 14:03:07 UTC`."""
    moment = parse_time(value)
    return NONE if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def short_clock(value: str | None) -> str:
    """`29 Nov 14:03`, in UTC; for a column whose head says so."""
    moment = parse_time(value)
    return NONE if moment is None else moment.astimezone(UTC).strftime("%d %b %H:%M")


def day(value: str | None) -> str:
    """`29 Nov`, in UTC."""
    moment = parse_time(value)
    return NONE if moment is None else moment.astimezone(UTC).strftime("%d %b")


def age(value: str | None, now: datetime) -> str:
    """How long ago, in one unit: `3 min ago`."""
    moment = parse_time(value)
    if moment is None:
        return NONE
    seconds = max(0.0, (now - moment).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)}{THIN}{unit} ago"
    return f"{int(seconds)}{THIN}s ago"


def until(value: str | None, now: datetime) -> str:
    """How long from now: `in 3 h 5 min`; `now` for what is due."""
    moment = parse_time(value)
    if moment is None:
        return NONE
    seconds = (moment - now).total_seconds()
    return f"in {duration(round(seconds))}" if seconds >= 1 else "now"


def span(start: str | None, end: str | None, now: datetime) -> str:
    """How long something took, or has taken until now."""
    started, finished = parse_time(start), parse_time(end) or now
    return NONE if started is None else duration(max(0.0, (finished - started).total_seconds()))


def number(value: float | None, digits: int = 4) -> str:
    """A measured number; `not finite` is said, because a loss that is NaN must not look like one that is missing."""
    if value is None:
        return NONE
    return f"{value:.{digits}f}" if math.isfinite(value) else "not finite"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def short(name: str | None) -> str:
    """The first nine digits of a commit; `COMMIT-DIFF` is a tree with changes and keeps four digits of them."""
    commit, _, diff = (name or "").partition("-")
    return (commit[:9] + (f"-{diff[:4]}" if diff else "")) or NONE


def ratio(value: float | None) -> str:
    """`1.213` -> `×1.21`."""
    return NONE if value is None else f"×{value:.2f}"


def percent(value: float | None) -> str:
    """A ratio as the change it means: `1.213` -> `+21 %`."""
    if value is None:
        return NONE
    change = round(100 * (value - 1))
    return f"{'±' if change == 0 else '+' if change > 0 else '−'}{abs(change)}{THIN}%"


def interval(low: float | None, high: float | None) -> str:
    """The interval of a ratio in square brackets; empty where there is none."""
    return "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"


def count_of(part: int, whole: int) -> str:
    return f"{part}/{whole}"


def successes(succeeded: int, judged: int) -> str:
    """Of the trials that were judged: of one that is UNKNOWN, or was struck by hand, nobody says that it failed."""
    return count_of(succeeded, judged) if judged else "not judged"
