"""Charts as data: Plotly figures built by pure functions, without Plotly.

A colour is written as `@name`; the page's script puts the theme's colour of that name in its place,
so one figure serves light, dark and print, and a test can read it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dashboards.api import Json

MAX_POINTS = 1500
MAX_RATES = 300


def loss_figure(steps: Sequence[Json], faults: Sequence[Json], recoveries: Sequence[Json], *, key: str) -> Json:
    """Loss over the run's clock, throughput below it, a numbered marker per fault, a window per recovery.

    `faults` are numbered in their order, as in the page's tables; those not injected have no marker.
    `recoveries` carry `started_s`. `key` keeps the reader's zoom while live points arrive.
    """
    struck = [(number, fault) for number, fault in enumerate(faults, 1) if fault.get("injected_at_s") is not None]
    shown = thin(steps)
    drawn = layout(
        height=340,
        key=key,
        xaxis=axis("seconds since the run started", anchor="y2"),
        yaxis=axis("loss", domain=[0.36, 1.0], showticklabels=bool(shown)),
        yaxis2=axis("steps/s", domain=[0.0, 0.24], rangemode="tozero", nticks=3, showticklabels=bool(shown)),
        shapes=[_window(recovery) for recovery in recoveries if recovery.get("started_s") is not None]
        + [_fault_line(fault["injected_at_s"]) for _, fault in struck],
        annotations=[_fault_label(number, fault) for number, fault in struck] + ([] if shown else [_NOTHING]),
    )
    return {"data": [_loss_trace(shown), _throughput_trace(steps), _fault_trace(struck, shown)], "layout": drawn}


def thin(steps: Sequence[Json], most: int = MAX_POINTS) -> list[Json]:
    """At most `most` steps, and among them the least and the greatest loss of every stretch.

    Taking every n-th step would hide a spike of a single step, which is just what one looks for.
    """
    usable = [step for step in steps if finite(step.get("loss"))]
    if len(usable) <= most:
        return usable
    size = math.ceil(len(usable) / (most // 2 - 1))
    kept: dict[int, Json] = {0: usable[0], len(usable) - 1: usable[-1]}
    for start in range(0, len(usable), size):
        stretch = range(start, min(start + size, len(usable)))
        for index in (min(stretch, key=lambda i: usable[i]["loss"]), max(stretch, key=lambda i: usable[i]["loss"])):
            kept[index] = usable[index]
    return [kept[index] for index in sorted(kept)]


def throughput(steps: Sequence[Json], most: int = MAX_RATES) -> list[tuple[float, float]]:
    """(since when in seconds of the run, steps per second from then on), over single steps or equal groups of them.

    Groups of steps, not slices of time: a stall is one long step, so it shows at its true length, and
    an even pace gives an even line.
    """
    times = [step["at_s"] for step in steps if step.get("at_s") is not None]
    size = max(1, math.ceil((len(times) - 1) / most))
    edges = times[::size]
    return [(start, size / (end - start)) for start, end in itertools.pairwise(edges) if end > start]


def finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def clean(value: Any) -> Any:
    """NaN and infinity are no JSON; a browser that finds one drops the whole chart."""
    if isinstance(value, float):
        return value if finite(value) else None
    if isinstance(value, dict):
        return {key: clean(part) for key, part in value.items()}
    return [clean(part) for part in value] if isinstance(value, list | tuple) else value


def layout(*, height: int, key: str, **more: Any) -> Json:
    """What all figures share. `key` keeps the reader's zoom while the figure changes."""
    return {
        "uirevision": key,
        "height": height,
        "margin": {"l": 56, "r": 14, "t": 26, "b": 44},
        "showlegend": False,
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "@muted"},
        "hoverlabel": {"bgcolor": "@surface", "bordercolor": "@line", "font": {"color": "@text"}},
        **more,
    }


def axis(title: str, **more: Any) -> Json:
    return {
        "title": {"text": title, "font": {"size": 12}, "standoff": 8},
        "gridcolor": "@grid",
        "linecolor": "@line",
        "zeroline": False,
        "automargin": False,
        **more,
    }


def _loss_trace(steps: Sequence[Json]) -> Json:
    return {
        "type": "scatter",
        "name": "loss",
        "mode": "lines+markers" if len(steps) <= 120 else "lines",
        "x": [step["at_s"] for step in steps],
        "y": [step["loss"] for step in steps],
        "customdata": [[step["step"], step.get("generation")] for step in steps],
        "line": {"color": "@accent", "width": 1.5},
        "marker": {"size": 3.5},
        "hovertemplate": "step %{customdata[0]}<br>loss %{y:.4f}<br>at %{x:.2f} s"
        "<br>generation %{customdata[1]}<extra></extra>",
    }


def _throughput_trace(steps: Sequence[Json]) -> Json:
    rates = throughput(steps)
    last = steps[-1]["at_s"] if rates else None
    return {
        "type": "scatter",
        "name": "steps/s",
        "mode": "lines",
        "x": [at for at, _ in rates] + ([last] if rates else []),
        "y": [rate for _, rate in rates] + ([rates[-1][1]] if rates else []),
        "yaxis": "y2",
        "line": {"color": "@muted", "width": 1.2, "shape": "hv"},
        "fill": "tozeroy",
        "fillcolor": "@fill",
        "hovertemplate": "%{y:.1f} steps/s<extra></extra>",
    }


def _fault_trace(struck: Sequence[tuple[int, Json]], steps: Sequence[Json]) -> Json:
    """A marker on the curve for each fault, at the loss of the last step before it."""
    return {
        "type": "scatter",
        "name": "fault",
        "mode": "markers",
        "x": [fault["injected_at_s"] for _, fault in struck],
        "y": [_loss_before(steps, fault["injected_at_s"]) for _, fault in struck],
        "text": [fault_name(number, fault) for number, fault in struck],
        "marker": {"symbol": "x", "size": 10, "color": "@fail", "line": {"color": "@surface", "width": 1}},
        "hovertemplate": "%{text}<br>at %{x:.3f} s<extra></extra>",
    }


def fault_name(number: int, fault: Json) -> str:
    rank = (fault.get("injected") or {}).get("rank")
    return f"fault {number}: {fault['kind']}" + (f" on rank {rank}" if rank is not None else "")


def _loss_before(steps: Sequence[Json], at: float) -> float | None:
    before = [step["loss"] for step in steps if step["at_s"] <= at]
    return before[-1] if before else (steps[0]["loss"] if steps else None)


def _window(recovery: Json) -> Json:
    """A recovery that has not ended is drawn as a line: where it would end, nobody knows yet."""
    start = recovery["started_s"]
    end = start + (recovery.get("recovery_s") or 0.0)
    band: Json = {"type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1}
    return {**band, "name": "recovery", "fillcolor": "@window", "line": {"width": 0}, "layer": "below"}


def _fault_line(at: float) -> Json:
    line = {"color": "@fail", "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}


_NOTHING: Json = {
    "text": "no step is committed yet",
    "showarrow": False,
    "xref": "paper",
    "yref": "paper",
    "x": 0.5,
    "y": 0.7,
}


def _fault_label(number: int, fault: Json) -> Json:
    # Not <b>: Plotly would write a style attribute into the markup, which the content security policy refuses.
    font = {"color": "@fail", "size": 12, "weight": "bold"}
    place: Json = {"x": fault["injected_at_s"], "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom"}
    return {**place, "text": str(number), "showarrow": False, "font": font}
