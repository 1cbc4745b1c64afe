"""Two revisions side by side: the ratio with its interval for each scenario and metric, the verdict, the raw points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json, NotFound, ServiceProblem
from dashboards.pages.shown import Shown

TONES = {
    "regression": "fail",
    "reliability regression": "fail",
    "improvement": "pass",
    "stable": "pass",
    "inconclusive": "unknown",
    "insufficient data": "unknown",
    "not comparable": "unknown",
}
FOREST = (0.5, 2.0)
"""Ratios at the ends of the forest's axis, which is logarithmic: what lies beyond stands at its edge."""
SAME = (1 / 1.05, 1.05)
"""The band in which the gate calls a change too small to matter."""
MOST_DOTS = 60


@dataclass(frozen=True, kw_only=True)
class Dot:
    x: float
    failed: bool


@dataclass(frozen=True, kw_only=True)
class RowView:
    """A row of the comparison. Places in the forest are in percent; None where there is no ratio."""

    row: Json
    key: str
    tone: str
    ratio: str
    interval: str
    base: str
    head: str
    base_success: str
    head_success: str
    p: str
    at: float | None
    low: float | None
    high: float | None
    base_dots: Sequence[Dot]
    head_dots: Sequence[Dot]
    most: str
    title: str


async def page(request: Request, api: Api) -> Shown:
    base, head = (request.query_params.get(name, "").strip() for name in ("base", "head"))
    scenario = request.query_params.get("scenario") or None
    series = await api.get("history", "series")
    codes: list[Json] = series["codes"]
    comparison, trouble = None, ""
    if base and head:
        try:
            comparison = await api.get("comparisons", base=base, head=head, scenario=scenario)
        except ServiceProblem as error:
            if not isinstance(error, NotFound) and error.status != 422:
                raise
            trouble = error.detail
    context = {
        "codes": codes,
        "scenarios": sorted({item["scenario"] for item in series["items"]}),
        "base": base or (codes[1]["name"] if len(codes) > 1 else ""),
        "head": head or (codes[0]["name"] if codes else ""),
        "scenario": scenario,
        "trouble": trouble,
        "comparison": comparison,
        "axis": [(ratio, forest_x(ratio)) for ratio in (0.5, 0.7, 1.0, 1.4, 2.0)],
        "band": (forest_x(SAME[0]), forest_x(SAME[1])),
        "seeded": bool(series.get("seeded")),
        "files": files(base, head, scenario),
        **(compare_page(comparison) if comparison else {}),
    }
    return Shown(template="compare.html", context=context)


def compare_page(comparison: Json) -> dict[str, Any]:
    """What compare.html adds for a comparison: the rows that gate, and by series those that explain them."""
    rows = [row_view(row) for row in comparison["rows"]]
    return {
        "gating": [view for view in rows if view.row["gates"]],
        "explaining": _grouped([view for view in rows if not view.row["gates"]]),
        "counts": [(verdict, count, TONES.get(verdict, "unknown")) for verdict, count in comparison["counts"].items()],
        "verdict_tone": TONES.get(comparison["verdict"], "unknown"),
    }


def files(base: str, head: str, scenario: str | None) -> list[tuple[str, str]]:
    """The comparison for programs, for a report and for a spreadsheet."""
    query = urlencode({"base": base, "head": head, **({"scenario": scenario} if scenario else {})})
    forms = (("Markdown", "markdown"), ("JUnit", "junit"), ("CSV", "csv"))
    written = [(word, f"/api/v1/comparisons/file?{query}&form={form}") for word, form in forms]
    return [("JSON", f"/api/v1/comparisons?{query}"), *written]


def _grouped(views: Sequence[RowView]) -> list[tuple[str, str, list[RowView]]]:
    groups: dict[tuple[str, str], list[RowView]] = {}
    for view in views:
        groups.setdefault((view.row["scenario"], view.row["fault"] or ""), []).append(view)
    return [(scenario, fault, rows) for (scenario, fault), rows in groups.items()]


def row_view(row: Json) -> RowView:
    base, head = row["base"], row["head"]
    top = 1.05 * max((v for group in (base, head) for v in group["values"] if v is not None), default=1.0)
    ratio = row["ratio"]
    return RowView(
        row=row,
        key="-".join(str(row[name] or "") for name in ("scenario", "fault", "metric")),
        tone=TONES.get(row["verdict"], "unknown"),
        ratio=text.ratio(ratio),
        interval=text.interval(row["low"], row["high"]),
        base=text.milliseconds(base["median"]),
        head=text.milliseconds(head["median"]),
        base_success=text.successes(base["succeeded"], base["trials"] - base["unjudged"]),
        head_success=text.successes(head["succeeded"], head["trials"] - head["unjudged"]),
        p=_p(row),
        at=None if ratio is None else forest_x(ratio),
        low=None if row["low"] is None else forest_x(row["low"]),
        high=None if row["high"] is None else forest_x(row["high"]),
        base_dots=dots(base["values"], top),
        head_dots=dots(head["values"], top),
        most=text.milliseconds(top),
        title=f"{row['scenario']}, {row['metric']}: {text.percent(ratio)} {text.interval(row['low'], row['high'])}",
    )


def forest_x(ratio: float) -> float:
    """Where a ratio stands, in percent of the width."""
    low, high = (math.log(end) for end in FOREST)
    return min(100.0, max(0.0, 100 * (math.log(ratio) - low) / (high - low))) if ratio > 0 else 0.0


def dots(values: Sequence[float | None], top: float) -> list[Dot]:
    """A trial that did not recover stands at the right edge, as a cross."""
    every = max(1, -(-len(values) // MOST_DOTS))
    return [Dot(x=98.5 if value is None else 96 * value / top, failed=value is None) for value in list(values)[::every]]


def _p(row: Json) -> str:
    if row["p"] is None:
        return text.NONE
    adjusted = f" ({probability(row['p_adjusted'])} adjusted)" if row.get("p_adjusted") is not None else ""
    return f"{probability(row['p'])}{adjusted}"


def probability(value: float) -> str:
    """Three digits; below that, only that it is below: nobody's samples tell a millionth from a thousandth."""
    return "<0.001" if value < 0.0005 else f"{value:.3f}"
