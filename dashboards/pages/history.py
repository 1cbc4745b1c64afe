"""The history of one series: every trial of every session, the levels, where they change; the same as a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json, NotFound
from dashboards.history_figure import history_figure, phases_figure
from dashboards.pages.shown import Shown
from dashboards.waterfall import PHASES

RANGES = (30, 100, 400)
DEFAULT_RANGE = 100
VIEWS = {"trials": "Every trial", "phases": "Phases"}
BREAKS, FIELDS = 3, 6
"""So many of the last are told of in words, and so much of what differs."""


async def page(request: Request, api: Api) -> Shown:
    series = await api.get("history", "series")
    chosen = choose(dict(request.query_params), series["items"])
    if chosen is None:
        return Shown(template="history.html", context={"chosen": None, "history": None, "seeded": False})
    query = {name: chosen[name] for name in ("scenario", "fault", "fingerprint", "branch", "limit")}
    metrics = list(PHASES) if chosen["view"] == "phases" else []
    try:
        history, *phases = await asyncio.gather(
            api.get("history", metric=chosen["metric"], **query),
            *(api.get("history", metric=metric, **query) for metric in metrics),
        )
    except NotFound as error:  # of this machine, say: the form is the way to what there is
        context = {**form(series, chosen), "history": None, "why": error.detail}
        return Shown(template="history.html", context=context, status=error.status)
    context = history_page(series, history, dict(zip(metrics, phases, strict=True)), chosen)
    return Shown(template="history.html", context=context)


def choose(query: Json, series: Sequence[Json]) -> Json | None:
    """What the address asks for, completed to what there is; None where there is no history at all.

    A scenario that is not known is asked for all the same, so that the service says so.
    """
    scenario = query.get("scenario") or (series[0]["scenario"] if series else None)
    if scenario is None:
        return None
    own = [item for item in series if item["scenario"] == scenario]
    faults = [item["fault"] for item in own]
    fault = query.get("fault")
    if faults and (not fault or (fault not in faults and any(item["fault"] == fault for item in series))):
        fault = faults[0]  # the fault of another scenario is what the form had before this one was chosen
    metrics = next((item["metrics"] for item in own if item["fault"] == fault), ["recovery"])
    usual = "recovery" if "recovery" in metrics else metrics[0]
    return {
        "scenario": scenario,
        "fault": fault or None,
        "faults": faults,
        "metric": query["metric"] if query.get("metric") in metrics else usual,
        "metrics": metrics,
        "fingerprint": query.get("fingerprint") or None,
        "branch": query.get("branch") or None,
        "limit": int(query["limit"]) if query.get("limit", "").isdecimal() else DEFAULT_RANGE,
        "view": query["view"] if query.get("view") in VIEWS else "trials",
        "log": query.get("y") == "log",
    }


def form(series: Json, chosen: Json) -> dict[str, Any]:
    """What there is to choose from, and what was chosen."""
    return {
        "series": series["items"],
        "machines": [_machine(item) for item in series["machines"]],
        "branches": series["branches"],
        "chosen": chosen,
        "views": VIEWS,
        "ranges": RANGES,
        "kept": [(name, value) for name, value in _drawing(chosen).items() if value],
        "href": lambda **changes: _href(chosen, **changes),
        "seeded": bool(series.get("seeded")),
    }


def history_page(series: Json, history: Json, phases: dict[str, Json], chosen: Json) -> dict[str, Any]:
    """The context of history.html."""
    points: list[Json] = history["points"]
    drawn = phases_figure(phases) if phases else history_figure(history, log=chosen["log"])
    cuts = [_break(cut, points) for cut in reversed(history["breaks"])]
    return {
        **form(series, chosen),
        "history": history,
        "figure": drawn,
        "phases": list(phases),
        "shares": history["metric"] == "success",
        "rows": [
            _row(*same)
            for same in reversed(list(zip(points, *(each["points"] for each in phases.values()), strict=True)))
        ],
        "changes": [_change(change, history) for change in reversed(history["change_points"])],
        "breaks": cuts[:BREAKS],
        "earlier_breaks": len(cuts[BREAKS:]),
        "files": files(chosen, list(phases)),
        "document": files(chosen, [])[0][1],
    }


def _row(point: Json, *phases: Json) -> dict[str, Any]:
    """`phases`: the same point, with the time of each phase."""
    trials = point.get("trials") or []
    return {
        "phases": [text.milliseconds(phase["median"], "") for phase in phases],
        "point": point,
        "at": text.clock(point["at"]),
        "code": point["short"],
        "median": text.milliseconds(point["median"]),
        "interval": ""
        if point["low"] is None
        else f"{text.milliseconds(point['low'], '')} to {text.milliseconds(point['high'], '')}",
        "values": _values(point, trials),
        "share": f"{100 * point['median']:.0f} %" if point["median"] is not None else text.NONE,
        "success": text.successes(point["succeeded"], point["judged"]),
        "failed": point["succeeded"] < point["judged"],
    }


def _values(point: Json, trials: Sequence[str]) -> list[tuple[str, str]]:
    """Each trial with what it says; where that is no time, its number."""
    if not point["values"]:
        return [(trial, str(number)) for number, trial in enumerate(trials, start=1)]
    said = ["✗" if value is None else text.milliseconds(value, "") for value in point["values"]]
    return list(zip_longest(trials[: len(said)], said, fillvalue=""))


def _break(cut: Json, points: Sequence[Json]) -> dict[str, Any]:
    point = next(point for point in points if point["index"] == cut["index"])
    said, more = cut["fields"][:FIELDS], cut["fields"][FIELDS:]
    told = [*said, f"and {len(more)} more"] if more else said
    return {**cut, "fields": told, "at": text.clock(point["at"]), "code": point["short"]}


def _change(change: Json, history: Json) -> dict[str, Any]:
    at = next((point["at"] for point in history["points"] if point["index"] == change["index"]), None)
    return {
        "at": text.clock(at),
        "change": text.percent(change["ratio"]),
        "slower": change["ratio"] > 1,
        "before": text.milliseconds(change["before"]),
        "after": text.milliseconds(change["after"]),
        "code": change["code"],
        "previous": change["previous"],
        "compare": compare_href(change["previous"], change["code"]),
    }


def files(chosen: Json, phases: Sequence[str]) -> list[tuple[str, str]]:
    """What is drawn, for programs and for spreadsheets."""
    metrics = phases or [chosen["metric"]]
    names = ("fingerprint", "branch", "limit")
    rest = urlencode({name: chosen[name] for name in names if chosen[name]})

    def query(*asked: str) -> str:
        of = [("scenario", chosen["scenario"]), ("fault", chosen["fault"]), *(("metric", metric) for metric in asked)]
        return f"{urlencode([(name, value) for name, value in of if value])}&{rest}"

    documents = [(f"{metric} JSON" if phases else "JSON", f"/api/v1/history?{query(metric)}") for metric in metrics]
    return [*documents, ("CSV", f"/api/v1/history/file?{query(*metrics)}")]


def compare_href(base: str, head: str) -> str:
    return f"/compare?{urlencode({'base': base, 'head': head})}"


def _machine(item: Json) -> tuple[str, str]:
    machine = item.get("machine") or {}
    name = " · ".join(str(machine[part]) for part in ("cpu", "cores") if machine.get(part))
    return item["fingerprint"], f"{item['fingerprint'][:8]} {name}".strip()


def _drawing(chosen: Json) -> dict[str, str | int | None]:
    """How it is drawn, where that is not as usual."""
    return {
        "limit": chosen["limit"] if chosen["limit"] != DEFAULT_RANGE else None,
        "view": chosen["view"] if chosen["view"] != "trials" else None,
        "y": "log" if chosen["log"] else None,
    }


def _href(chosen: Json, **changes: str | int | None) -> str:
    """The address of this view with something else chosen: every view is a permalink."""
    query = {
        "scenario": chosen["scenario"],
        "fault": chosen["fault"],
        "metric": chosen["metric"],
        "fingerprint": chosen["fingerprint"],
        "branch": chosen["branch"],
        **_drawing(chosen),
        **changes,
    }
    return f"/history?{urlencode({name: value for name, value in query.items() if value})}"
