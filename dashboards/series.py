"""Series of the history in short: a sparkline, the level now, whether it is slower. Pure but for `all_histories`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from dashboards import text
from dashboards.api import Api, Json, NotFound

SLOWER = 1.05
"""A level that rose by less is no news; the same limit as the gate of comparisons has."""
MOST_SERIES = 60
METRIC = "recovery"


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Every series there is. `seeded`: made up by `phoenix demo --seed-data`."""

    histories: Sequence[Json]
    machines: Sequence[Json]
    seeded: bool


@dataclass(frozen=True, kw_only=True)
class Spark:
    """One session in a sparkline, in percent of its box; `y` counts from the top."""

    x: float
    y: float | None
    failed: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """A series in one line. `slower`: ratio of the level now to the one before, where it rose and stayed so. `other`:
    what came after the last change of level (a machine, a scenario), so that there is no level before to compare with.
    """

    scenario: str
    fault: str
    href: str
    sparks: Sequence[Spark]
    path: str
    median: str
    interval: str
    success: str
    failed: bool
    age: str
    slower: float | None
    change: str
    before: float | None
    after: float | None
    since: str
    other: str


async def all_histories(api: Api, *, limit: int) -> Overview:
    """The history of every series."""
    series = await api.get("history", "series")
    histories = await histories_of(api, series["items"], limit=limit)
    return Overview(histories=histories, machines=series["machines"], seeded=bool(series.get("seeded")))


async def histories_of(api: Api, items: Sequence[Json], *, limit: int, **which: str | None) -> list[Json]:
    """Those of the first MOST_SERIES of these, by the recovery time, or (a fault on a spare) by what there is of it.

    `which`: the machine and the branch; a series that has nothing of them is left out.
    """
    found = await asyncio.gather(*(_history(api, item, limit, which) for item in items[:MOST_SERIES]))
    return [history for history in found if history is not None]


async def _history(api: Api, item: Json, limit: int, which: Mapping[str, str | None]) -> Json | None:
    metric = METRIC if METRIC in item["metrics"] else item["metrics"][0]
    try:
        history = await api.get(
            "history", scenario=item["scenario"], fault=item["fault"], metric=metric, limit=limit, **which
        )
    except NotFound:
        return None
    return {**history, "current": item["current"]}


def line_of(history: Json, now: datetime) -> Line:
    points: list[Json] = history["points"]
    last = points[-1] if points else None
    change = _open_change(history)
    return Line(
        scenario=history["scenario"],
        fault=history["fault"],
        href=history_href(history),
        sparks=_sparks(points),
        path=_path(_sparks(points)),
        median=text.milliseconds(last["median"]) if last else text.NONE,
        interval=_interval(last) if last else "",
        success=text.successes(last["succeeded"], last["judged"]) if last else text.NONE,
        failed=bool(last and last["succeeded"] < last["judged"]),
        age=text.age(last["at"], now) if last else text.NONE,
        slower=change["ratio"] if change and change["ratio"] >= SLOWER else None,
        change=text.percent(change["ratio"]) if change else "",
        before=change["before"] if change else None,
        after=change["after"] if change else None,
        since=text.short(change["code"]) if change else "",
        other=f"other {history['breaks'][-1]['kind']}" if history["breaks"] and not change else "",
    )


def history_href(history: Json, **more: str) -> str:
    query = {"scenario": history["scenario"], "fault": history["fault"] or "", "metric": history["metric"], **more}
    return f"/history?{urlencode({name: value for name, value in query.items() if value})}"


def _open_change(history: Json) -> Json | None:
    """The last change of level, if no other machine came after it: the present level is seen against the one before."""
    changes, cuts = history["change_points"], history["breaks"]
    if not changes or (cuts and cuts[-1]["index"] > changes[-1]["index"]):
        return None
    last: Json = changes[-1]
    return last


def _sparks(points: Sequence[Json]) -> list[Spark]:
    known = [point["median"] for point in points if point["median"] is not None]
    # From below its least: the shape is what it is for, and the numbers stand beside it. Noise must not look like news.
    top, bottom = 1.05 * max(known, default=1.0), 0.75 * min(known, default=0.0)
    width = 100 / max(1, len(points))
    return [
        Spark(
            x=width * (index + 0.5),
            y=None if point["median"] is None else 100 * (top - point["median"]) / (top - bottom),
            failed=bool(point["not_recovered"]) or point["succeeded"] < point["judged"],
        )
        for index, point in enumerate(points)
    ]


def _path(sparks: Sequence[Spark]) -> str:
    """For the points of a polyline whose box is 100 wide and 100 high."""
    return " ".join(f"{spark.x:.1f},{spark.y:.1f}" for spark in sparks if spark.y is not None)


def _interval(point: Json) -> str:
    if point.get("low") is None or point.get("high") is None:
        return f"n={point['n']}"
    return f"{text.milliseconds(point['low'], unit='')} to {text.milliseconds(point['high'])}"
