"""When a schedule is due. Pure: told of the time.

A time zone is where people live; what is stored and compared is UTC. In a zone with summer time a cron expression means
the clock on the wall there: a time that is skipped in spring is due at the end of the gap; of an hour that comes twice
in autumn a schedule that names its hours, as a nightly does, is due in the first, and one of every hour in both. UTC,
which is what a schedule has unless it says otherwise, knows neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import CroniterError, croniter

# Somebody who wants it oftener wants a suite with more trials.
SHORTEST_S = 10.0
# No clock is put back by more.
_LONGEST_REPEAT = timedelta(hours=2)
# The fields of a cron expression, and how many values each has.
_FIELDS = {"minute": 60, "hour": 24, "day of month": 31, "month": 12, "day of week": 7}


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
        here = zone(self.timezone)
        instants = croniter(self.cron, moment.astimezone(here))
        while True:
            found: datetime = instants.get_next(datetime).astimezone(UTC)
            if self._every_hour or not found.astimezone(here).fold:
                return found

    @property
    def _every_hour(self) -> bool:
        """By its cron expression it names no hour: one that comes twice counts twice."""
        fields = (self.cron or "").split()
        return fields == ["@hourly"] or (len(fields) == 5 and fields[1].startswith("*"))

    def due(self, first: datetime, now: datetime) -> tuple[datetime, int, datetime | None]:
        """Of all instants from `first` (due) to `now`: the last one, how many came before it, and the next one."""
        last, earlier = first, 0
        if self.every_s is not None:
            earlier = int((now - first).total_seconds() // self.every_s)
            last = first + timedelta(seconds=earlier * self.every_s)
        elif self.cron is not None:
            # Backwards from now: a service that slept for a year does not count its minutes. Then forward again, since
            # going back croniter takes the first of two equal hours for the second.
            local = now.astimezone(zone(self.timezone)) + timedelta(microseconds=1)
            before: datetime = croniter(self.cron, local).get_prev(datetime).astimezone(UTC) - _LONGEST_REPEAT
            following = self.next_after(max(first, before))
            while following is not None and following <= now:
                last, earlier = following, 1
                following = self.next_after(last)
        return last, earlier, self.next_after(last)


def zone(name: str) -> ZoneInfo:
    """Raises InvalidTiming."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidTiming(f"there is no time zone {name!r}; it is a name like Europe/Berlin", "timezone") from None


def _check_cron(text: str) -> None:
    fields = text.split()
    if len(fields) != len(_FIELDS) and not text.startswith("@"):
        raise InvalidTiming(f"{text!r} is no cron expression: five fields ({', '.join(_FIELDS)}), or @daily", "cron")
    for (name, values), field in zip(_FIELDS.items(), fields, strict=False):
        for part in field.split(","):
            _, _, step = part.partition("/")
            if part[:1].lower() in {"r", "h"}:  # croniter can draw fields
                raise InvalidTiming(f"{name}: {part!r} is drawn by chance, and a schedule that moves is none", "cron")
            if step.isdecimal() and int(step) > values:
                advice = "for a longer time between two take the kind 'interval'"
                raise InvalidTiming(f"{name}: {part!r} steps over all of its {values} values; {advice}", "cron")
    try:
        croniter(text, datetime(2026, 1, 1, tzinfo=UTC)).get_next(datetime)
    except (CroniterError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InvalidTiming(f"{text!r} is no cron expression that is ever due: {error}", "cron") from None
