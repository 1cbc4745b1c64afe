"""Scenario by session: what was slower than usual when. The picture is a table, so it needs no second one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json
from dashboards.pages.shown import Shown
from dashboards.series import all_histories, history_href

SESSIONS = 30
BOUNDS = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5)
"""Between the colours, from much faster (0) to much slower (7); 3 is as usual."""


@dataclass(frozen=True, kw_only=True)
class Column:
    session: str
    day: str
    at: str
    code: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """`shade`: index of the colour, `none` without a trial, `failed` where a trial failed its checks."""

    shade: str
    label: str
    title: str
    href: str


async def page(request: Request, api: Api) -> Shown:
    overview = await all_histories(api, limit=SESSIONS)
    return Shown(template="heatmap.html", context={**heatmap_page(overview.histories), "seeded": overview.seeded})


def heatmap_page(histories: Sequence[Json]) -> dict[str, Any]:
    """The context of heatmap.html. Columns are the sessions of all series together, the newest last."""
    seen = {_key(point): point for history in histories for point in history["points"]}
    newest = sorted(seen.values(), key=lambda point: str(point["at"]))[-SESSIONS:]
    columns = [Column(session=_key(p), day=text.day(p["at"]), at=text.clock(p["at"]), code=p["short"]) for p in newest]
    return {
        "columns": columns,
        "rows": [
            (history["scenario"], history["fault"], history_href(history), cells(history, columns))
            for history in histories
        ],
        "bounds": BOUNDS,
    }


def cells(history: Json, columns: Sequence[Column]) -> list[Cell]:
    own = {_key(point): point for point in history["points"]}
    usual = _usual(history)
    return [_cell(own.get(column.session), column, usual, history) for column in columns]


def _usual(history: Json) -> Mapping[int, float]:
    """By index of a point: the level of the first segment since the last other machine, to which all are compared."""
    starts = [0, *(cut["index"] for cut in history["breaks"])]
    first: dict[int, float] = {}
    for segment in history["segments"]:
        start = max(index for index in starts if index <= segment["first"])
        first.setdefault(start, segment["median"])
    usual: dict[int, float] = {}
    for point in history["points"]:
        start = max(index for index in starts if index <= point["index"])
        if first.get(start):
            usual[point["index"]] = first[start]
    return usual


def _cell(point: Json | None, column: Column, usual: Mapping[int, float], history: Json) -> Cell:
    if point is None:
        return Cell(shade="none", label="", title=f"{column.at}: not run", href="")
    trials = len(point["trials"])
    failed = point["succeeded"] < point["judged"]
    base = usual.get(point["index"])
    ratio = point["median"] / base if point["median"] is not None and base else None
    said = f"{text.percent(ratio)} ({text.milliseconds(point['median'])})" if ratio else "no time"
    succeeded = text.count_of(point["succeeded"], point["judged"])
    title = f"{column.at}, {point['short']}: {said}, {succeeded} succeeded"
    href = f"/trials/{point['trials'][0]}" if trials == 1 else history_href(history)
    return Cell(
        shade="failed" if failed else "none" if ratio is None else str(shade(ratio)),
        label="✗" if failed else "" if ratio is None else text.percent(ratio).removesuffix(f"{text.THIN}%"),
        title=title,
        href=href,
    )


def shade(ratio: float) -> int:
    return sum(ratio >= bound for bound in BOUNDS)


def _key(point: Json) -> str:
    return f"{point['session']} {point['code']}"
