"""When a schedule is due. Pure: told of the time.

A time zone is where people live; what is stored and compared is UTC. In a zone with summer time a cron expression means
the clock on the wall there: a time that is skipped in spring is due at the end of the gap, one that comes twice in
autumn is due twice. UTC, which is what a schedule has unless it says otherwise, knows neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import CroniterError, croniter

# Somebody who wants it oftener wants a suite with more trials.
SHORTEST_S = 10.0


class InvalidTiming(Exception):
    """A schedule that can never be due, or not as it is written; `field` names what is wrong."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class Kind(StrEnum):
    CRON = "cron"
    INTERVAL = "interval"
    ONCE = "once"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """`cron` belongs to its kind, as `every_s` (counted from `start`) and `at` to theirs."""

    kind: Kind
    timezone: str = "UTC"
    cron: str | None = None
    every_s: float | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        """Raises InvalidTiming."""
        zone(self.timezone)
        for kind, field, value in (
            (Kind.CRON, "cron", self.cron),
            (Kind.INTERVAL, "every_s", self.every_s),
            (Kind.ONCE, "at", self.at),
        ):
            if (value is not None) != (kind == self.kind):
                verb = "needs" if kind == self.kind else "takes no"
                raise InvalidTiming(f"a schedule of the kind {self.kind} {verb} {field!r}", field)
        if self.cron is not None:
            _check_cron(self.cron)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first instant after this one at which it is due (UTC); None: never again."""
        if self.at is not None:
            at = self.at.astimezone(UTC)
            return at if at > moment else None
        if self.every_s is not None:
            return moment + timedelta(seconds=self.every_s)
        assert self.cron is not None
        local = moment.astimezone(zone(self.timezone))
        found: datetime = croniter(self.cron, local).get_next(datetime)
        return found.astimezone(UTC)

    def due(self, first: datetime, now: datetime) -> tuple[datetime, int, datetime | None]:
        """Of all instants from `first` (due) to `now`: the last one, how many came before it, and the next one."""
        last, earlier = first, 0
        if self.every_s is not None:
            earlier = int((now - first).total_seconds() // self.every_s)
            last = first + timedelta(seconds=earlier * self.every_s)
        elif self.cron is not None:
            # Backwards from now: a service that slept for a year does not count its minutes.
            local = now.astimezone(zone(self.timezone)) + timedelta(microseconds=1)
            newest = croniter(self.cron, local).get_prev(datetime).astimezone(UTC)
            last = max(first, newest)
            earlier = 0 if last == first else 1
        return last, earlier, self.next_after(last)


def zone(name: str) -> ZoneInfo:
    """Raises InvalidTiming."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidTiming(f"there is no time zone {name!r}; it is a name like Europe/Berlin", "timezone") from None


def _check_cron(text: str) -> None:
    fields = text.split()
    drawn = any(field[0] in "RH" for field in fields)  # croniter can draw fields; a schedule that moves is none
    if drawn or (len(fields) != 5 and not text.startswith("@")):
        raise InvalidTiming(
            f"{text!r} is no cron expression: five fields (minute, hour, day of month, month, day of week), or @daily",
            "cron",
        )
    try:
        croniter(text, datetime(2026, 1, 1, tzinfo=UTC)).get_next(datetime)
    except (CroniterError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InvalidTiming(f"{text!r} is no cron expression that is ever due: {error}", "cron") from None
