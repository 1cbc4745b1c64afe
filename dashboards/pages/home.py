"""Home: how the last night went, what is red and why, each series in a line, what runs now and what comes next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json
from dashboards.pages.narrowed import VERDICTS, Narrowed, narrowed
from dashboards.pages.runs import RunRow, run_row
from dashboards.pages.shown import Shown
from dashboards.series import Line, histories_of, line_of

LAST_S = 24 * 3600
SESSIONS = 30
RED = ("FAIL", "UNKNOWN")
LOOKED_INTO = 8
"""Red runs whose trials are read for the reason; the page of a run has it in any case."""
RECENT = 100
"""Runs that are looked at for what failed since yesterday."""


@dataclass(frozen=True, kw_only=True)
class Red:
    """Something that needs a look: what it is, why it is red, where to look."""

    tone: str
    what: str
    why: str
    href: str
    when: str = ""


async def page(request: Request, api: Api) -> Shown:
    now = datetime.now(UTC)
    since = (now - timedelta(seconds=LAST_S)).isoformat()
    series, suites, services, schedules, queue, newest = await asyncio.gather(
        api.get("history", "series"),
        api.items("suites"),
        api.items("services"),
        api.items("schedules"),
        api.get("queue"),
        api.items("runs", limit=1),
    )
    which = narrowed(dict(request.query_params), series, suites, services)
    chosen = [item for item in series["items"] if item["current"] and which.fits_series(item)]
    recent, histories = await asyncio.gather(
        api.items("runs", since=since, limit=RECENT, **which.runs),
        histories_of(api, chosen, limit=SESSIONS, **which.histories),
    )
    red_runs = [run for run in recent if run.get("verdict") in RED and which.fits_verdict(run)]
    trials = await asyncio.gather(*(api.items("runs", run["id"], "trials") for run in red_runs[:LOOKED_INTO]))
    reasons = {run["id"]: why_red(own) for run, own in zip(red_runs, trials, strict=False)}
    lines = [line_of(history, now) for history in histories]
    empty = not newest and not series["items"]
    context = home_page(recent, newest, schedules, queue, lines, reasons, now, which)
    seeded = bool(series.get("seeded")) or any_seeded(newest)
    return Shown(template="home.html", context={**context, "empty": empty, "seeded": seeded})


def home_page(
    recent: Sequence[Json],
    newest: Sequence[Json],
    schedules: Sequence[Json],
    queue: Json,
    lines: Sequence[Line],
    reasons: Mapping[str, str],
    now: datetime,
    which: Narrowed,
) -> dict[str, Any]:
    """The context of home.html."""
    lines = [line for line in lines if which.fits_line(line)]
    fitting = [schedule for schedule in schedules if which.fits_schedule(schedule)]
    late = () if which.chosen["verdict"] else fitting  # that a night did not happen is no verdict
    ended = [run for run in recent if run["state"] not in ("QUEUED", "RUNNING")]
    running = [run_row(run, now) for run in recent if run["state"] == "RUNNING"]
    due = sorted((item for item in fitting if item.get("next_due")), key=lambda item: str(item["next_due"]))
    return {
        "which": which,
        "verdicts": VERDICTS,
        "counts": [(verdict, sum(run.get("verdict") == verdict for run in ended)) for verdict in VERDICTS],
        "red": reds([run for run in ended if which.fits_verdict(run)], late, lines, reasons, now),
        "lines": lines,
        "running": running,
        "queued": queue.get("queued", 0),
        "next": [_coming(item, now) for item in due[:3]],
        "has_schedules": bool(schedules),
        "all_paused": all(item.get("paused") for item in schedules),
        "last": _last(recent or ([] if which.any else newest), now),
    }


def reds(
    ended: Sequence[Json],
    schedules: Sequence[Json],
    lines: Sequence[Line],
    reasons: Mapping[str, str],
    now: datetime,
) -> list[Red]:
    """Failures first, then what cannot be judged, then what became slower, then nights that did not happen."""
    failed = [_of_run(run, reasons.get(run["id"], ""), now) for run in ended if run.get("verdict") in RED]
    slower = [
        Red(
            tone="bad" if line.slower >= 1.2 else "warn",
            what=f"{line.scenario} became slower: {text.percent(line.slower)}",
            why=f"recovery {text.milliseconds(line.before)} → {text.milliseconds(line.after)} since {line.since}",
            href=line.href,
        )
        for line in lines
        if line.slower is not None
    ]
    stale = [
        Red(
            tone="warn",
            what=f"{item['name']} is stale",
            why="it has not ended a run for longer than it may; " + _why_stale(item),
            href=f"/schedules#{item['id']}",
        )
        for item in schedules
        if item.get("stale")
    ]
    return sorted(failed, key=lambda red: red.tone != "bad") + slower + stale


def _of_run(run: Json, reason: str, now: datetime) -> Red:
    failed = run["verdict"] == "FAIL"
    name = run.get("suite") or run["scenario"]
    said = "a check failed" if failed else "it could not be judged"
    return Red(
        tone="bad" if failed else "warn",
        what=f"{name}: {run['verdict']}",
        why=reason or run.get("error") or said,
        href=f"/runs/{run['id']}",
        when=text.age(run.get("finished_at") or run["created_at"], now),
    )


def why_red(trials: Sequence[Json]) -> str:
    """The first check that did not pass, and of how many trials that is the worst."""
    red = sorted((trial for trial in trials if trial.get("verdict") in RED), key=lambda trial: trial["verdict"])
    if not red:
        return ""
    found = [
        (name, check) for name, check in (red[0].get("checks") or {}).items() if check["verdict"] == red[0]["verdict"]
    ]
    name, check = found[0] if found else ("", {})
    told = f"{name}: {check['detail']}" if name else str(red[0].get("error") or "")
    scenario = f"{red[0]['scenario']}, " if red[0].get("scenario") and len(trials) > 1 else ""
    counted = f" ({text.count_of(len(red), len(trials))} trials)" if len(trials) > 1 else ""
    return f"{scenario}{told}{counted}"


def _why_stale(schedule: Json) -> str:
    last = schedule.get("last") or {}
    if not last:
        return "it has never fired"
    detail = f": {last['detail']}" if last.get("detail") else ""
    return f"last {last['outcome']} {text.clock(last.get('fired_at') or last.get('due_at'))}{detail}"


def _coming(schedule: Json, now: datetime) -> dict[str, str]:
    return {
        "name": schedule["name"],
        "href": f"/schedules#{schedule['id']}",
        "at": text.clock(schedule["next_due"]),
        "in": text.until(schedule["next_due"], now),
        "paused": "paused" if schedule.get("paused") else "",
    }


def any_seeded(runs: Sequence[Json]) -> bool:
    return any(run.get("seeded") for run in runs)


def _last(newest: Sequence[Json], now: datetime) -> RunRow | None:
    return run_row(newest[0], now) if newest else None
