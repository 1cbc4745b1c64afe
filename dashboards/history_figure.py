"""The history of one series as a Plotly figure: every trial, medians, levels, and where they change. Pure.

The horizontal axis counts sessions, all equally far apart, in the order that the service gives them; their names are
labels and never sorted by anybody.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from dashboards import text
from dashboards.api import Json
from dashboards.figures import axis, layout
from dashboards.waterfall import PHASES

MAX_DOTS = 3000
AXIS = "session, by when its code was first measured"
LABELS = 12
LETTER = 0.024
"""Of the axis, what a letter above the chart takes on a small screen."""
JITTER = 0.28
GOLDEN = 0.618
"""Steps of this part of a unit never fall together: neighbours stay apart without a random number."""


def history_figure(history: Json, *, log: bool = False) -> Json:
    """`history` as GET /history answers. Not recovered trials stand as crosses on a rail above the rest."""
    points: list[Json] = history["points"]
    shown = [value for point in points for value in point["values"] if value is not None]
    top = 1.08 * max(shown, default=1.0)
    success = history["metric"] == "success"
    scale: Json = {"type": "log"} if log else {"rangemode": "tozero"}
    drawn = layout(
        height=380,
        key=f"{history['scenario']} {history['metric']} {log}",
        margin={"l": 60, "r": 14, "t": 44, "b": 56},
        xaxis=axis(
            AXIS,
            tickmode="array",
            range=[-0.6, max(1.0, len(points) - 0.4)],
            **_labels(points),
        ),
        yaxis=axis("share that recovered" if success else f"{history['metric']}, seconds", **scale),
        shapes=[_vertical(change["index"], "@fail", "dash") for change in history["change_points"]]
        + _cuts(history)
        + [_vertical(at + 0.5, "@accent", "dot") for at in _noted(history)],
        annotations=_chips(history),
    )
    traces = [_success_trace(points)] if success else [_dots(points), *_medians(points), _lost(points, top)]
    return {"data": [*traces, *_levels(history["segments"])], "layout": drawn}


def phases_figure(histories: Mapping[str, Json]) -> Json:
    """The median of each phase, stacked: which phase it was that moved. `histories` by phase, of the same series."""
    first: Json = next(iter(histories.values()), {"points": [], "breaks": []})
    points: list[Json] = first["points"]
    drawn = layout(
        height=380,
        key="phases",
        barmode="stack",
        bargap=0.25,
        margin={"l": 60, "r": 14, "t": 26, "b": 56},
        xaxis=axis(AXIS, tickmode="array", range=[-0.6, len(points) - 0.4], **_labels(points)),
        yaxis=axis("median of each phase, seconds", rangemode="tozero"),
        shapes=_cuts(first),
        annotations=_apart(_other(first, 0), len(points)),
    )
    data = [
        {
            "type": "bar",
            "name": phase,
            "x": [point["index"] for point in history["points"]],
            "y": [point["median"] for point in history["points"]],
            "text": [_name(point) for point in history["points"]],
            "textposition": "none",
            "marker": {"color": f"@{phase}", "line": {"width": 0}},
            "hovertemplate": f"{phase} %{{y:.3f}} s<br>%{{text}}<extra></extra>",
        }
        for phase, history in histories.items()
        if phase in PHASES
    ]
    return {"data": data, "layout": drawn}


def _labels(points: Sequence[Json]) -> Json:
    """A dozen of them at most: the day, and the code below it."""
    every = max(1, -(-len(points) // LABELS))
    labelled = points[::every]
    return {
        "tickvals": [point["index"] for point in labelled],
        "ticktext": [f"{text.day(point['at'])}<br>{point['short']}" for point in labelled],
        "tickangle": 0,
        "tickfont": {"size": 10},
    }


def _name(point: Json) -> str:
    subject = f"<br>{_plain(point['subject'])}" if point.get("subject") else ""
    changed = " with changes" if point.get("dirty") else ""
    return f"{point['short']}{changed}, {text.short_clock(point['at'])}{subject}"


def _plain(words: str) -> str:
    """Plotly reads a few tags in its texts; a commit's subject has none."""
    return words.replace("&", "&amp;").replace("<", "&lt;")[:80]


def _dots(points: Sequence[Json]) -> Json:
    """Every trial; where there are too many for a page, evenly fewer of each session."""
    whole = sum(len(point["values"]) for point in points)
    every = max(1, -(-whole // MAX_DOTS))
    x, y, names, links = [], [], [], []
    for point in points:
        for number, value in enumerate(point["values"]):
            if value is None or number % every:
                continue
            x.append(point["index"] + JITTER * (2 * (number * GOLDEN % 1) - 1))
            y.append(value)
            names.append(_name(point))
            links.append(_link(point, number))
    return {
        "type": "scatter",
        "name": "trial",
        "mode": "markers",
        "x": x,
        "y": y,
        "text": names,
        "customdata": links,
        "marker": {"size": 6, "color": "@accent", "opacity": 0.45},
        "hovertemplate": "%{y:.3f} s<br>%{text}<extra>trial, click to open</extra>",
    }


def _link(point: Json, number: int) -> str:
    trials = point.get("trials") or []
    return f"/trials/{quote(trials[number], safe='')}" if number < len(trials) else ""


def _medians(points: Sequence[Json]) -> list[Json]:
    """A tick for each session's median, with its interval where there are trials enough for one."""
    known = [point for point in points if point["median"] is not None]
    bars = [point for point in known if point.get("low") is not None and point.get("high") is not None]
    ticks: Json = {
        "type": "scatter",
        "name": "median",
        "mode": "markers",
        "x": [point["index"] for point in known],
        "y": [point["median"] for point in known],
        "text": [f"{_name(point)}<br>{text.plural(point['n'], 'trial')}" for point in known],
        "marker": {
            "symbol": ["circle-open" if point.get("spike") else "line-ew" for point in known],
            "size": 13,
            "color": "@text",
            "line": {"width": 2.5, "color": "@text"},
        },
        "hovertemplate": "median %{y:.3f} s<br>%{text}<extra></extra>",
    }
    spans: Json = {
        "type": "scatter",
        "name": "95 % interval of the median",
        "mode": "lines",
        "x": [at for point in bars for at in (point["index"], point["index"], None)],
        "y": [at for point in bars for at in (point["low"], point["high"], None)],
        "line": {"color": "@text", "width": 1.2},
        "hoverinfo": "skip",
    }
    return [spans, ticks]


def _lost(points: Sequence[Json], top: float) -> Json:
    failed = [point for point in points if point["not_recovered"]]
    return {
        "type": "scatter",
        "name": "not recovered",
        "mode": "markers",
        "x": [point["index"] for point in failed],
        "y": [top for _ in failed],
        "text": [f"{text.plural(point['not_recovered'], 'trial')} not recovered<br>{_name(point)}" for point in failed],
        "marker": {"symbol": "x-open", "size": 11, "color": "@fail", "line": {"width": 2, "color": "@fail"}},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _success_trace(points: Sequence[Json]) -> Json:
    return {
        "type": "scatter",
        "name": "success",
        "mode": "lines+markers",
        "x": [point["index"] for point in points],
        "y": [point["median"] for point in points],
        "text": [f"{point['succeeded']} of {point['n']} that were judged<br>{_name(point)}" for point in points],
        "line": {"color": "@accent", "width": 1.2},
        "marker": {"size": 7},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _levels(segments: Sequence[Json]) -> list[Json]:
    """A line for each level between two changes; lines of different machines are never joined."""
    return [
        {
            "type": "scatter",
            "name": "level",
            "mode": "lines",
            "x": [segment["first"] - 0.4, segment["last"] + 0.4],
            "y": [segment["median"], segment["median"]],
            "line": {"color": "@fail", "width": 2},
            "hoverinfo": "skip",
        }
        for segment in segments
        if segment["median"] is not None
    ]


def _vertical(index: float, colour: str, dash: str) -> Json:
    """Before the point of this index."""
    at = index - 0.5
    place: Json = {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1}
    return {**place, "line": {"color": colour, "width": 1.2, "dash": dash}, "layer": "below"}


def _cuts(history: Json) -> list[Json]:
    return [_vertical(cut["index"], "@muted", "solid") for cut in history["breaks"]]


def _noted(history: Json) -> dict[float, int]:
    """Where notes are, and how many: one on a commit at its point, one on a moment before the point that follows."""
    placed = [note for note in history.get("annotations") or [] if note.get("index") is not None]
    return Counter(note["index"] - (0 if note.get("commit") else 0.5) for note in placed)


def _chips(history: Json) -> list[Json]:
    chips = [
        _chip(change["index"] - 0.5, text.percent(change["ratio"]), "@fail", 0) for change in history["change_points"]
    ]
    noted = _noted(history).items()
    above = _other(history, 16)
    above += [_chip(at, "note" if count == 1 else text.plural(count, "note"), "@accent", 16) for at, count in noted]
    sessions = len(history["points"])
    return [*_apart(chips, sessions), *_apart(above, sessions)]


def _other(history: Json, lift: int) -> list[Json]:
    return [_chip(cut["index"] - 0.5, f"other {cut['kind']}", "@muted", lift) for cut in history["breaks"]]


def _apart(chips: Sequence[Json], sessions: int) -> list[Json]:
    """From the newest back, those that do not lie over the one before; every place has its line in any case. None
    reaches over an end of the axis."""
    kept: list[Json] = []
    free = math.inf
    for chip in sorted(chips, key=lambda chip: -float(chip["x"])):
        at, wide = chip["x"], LETTER * len(chip["text"]) * sessions
        side = "right" if at + wide / 2 > sessions - 0.4 else "left" if at - wide / 2 < -0.6 else "center"
        end = at + {"right": 0.0, "left": wide, "center": wide / 2}[side]
        if end <= free:
            kept.append({**chip, "xanchor": side})
            free = end - wide
    return kept


def _chip(at: float, words: str, colour: str, lift: int) -> Json:
    place: Json = {"x": at, "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom", "yshift": lift}
    return {**place, "text": words, "showarrow": False, "font": {"color": colour, "size": 11}}
