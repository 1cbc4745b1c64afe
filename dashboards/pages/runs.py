"""The list of runs, and the button that starts one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json
from dashboards.pages.shown import Shown

ENDED = ("FINISHED", "CANCELLED", "ABANDONED")
STATES = ("QUEUED", "RUNNING", *ENDED)
VERDICTS = ("PASS", "FAIL", "UNKNOWN")
PARTS = {"run": "disturbed run", "twin": "undisturbed twin", "checks": "checks", "done": "done"}
PAGE_SIZE = 25
FILTERS = ("state", "verdict", "scenario", "suite", "schedule", "commit", "host", "branch")


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run in a list. `name`: of its suite, else of its scenario."""

    id: str
    name: str
    suite: bool
    workload: str
    state: str
    verdict: str | None
    part: str
    done: int
    steps: int
    trials: str
    cluster: str
    commit: str
    recoveries: int
    created: str
    age: str
    took: str
    seeded: bool


async def page(request: Request, api: Api) -> Shown:
    chosen = {name: request.query_params.get(name) or None for name in FILTERS}
    cursor = request.query_params.get("cursor") or None
    found, scenarios, suites = await asyncio.gather(
        api.get("runs", cursor=cursor, limit=PAGE_SIZE, **chosen), api.items("scenarios"), api.items("suites")
    )
    now = datetime.now(UTC)
    rows = [run_row(run, now) for run in found["items"]]
    return Shown(
        template="runs.html",
        context={
            "rows": rows,
            "chosen": chosen,
            "states": STATES,
            "verdicts": VERDICTS,
            "next": found.get("next"),
            "first": cursor is None,
            "scenarios": [str(item["name"]) for item in scenarios],
            "suites": [str(item["name"]) for item in suites],
            "seeded": any(row.seeded for row in rows),
        },
    )


def run_row(run: Json, now: datetime) -> RunRow:
    progress = run.get("progress") or {}
    total = int(progress.get("total") or 1)
    return RunRow(
        id=run["id"],
        name=run.get("suite") or run["scenario"],
        suite=bool(run.get("suite")),
        workload=run["workload"],
        state=run["state"],
        verdict=run.get("verdict"),
        part=PARTS.get(run.get("part") or "", "") if run["state"] == "RUNNING" else "",
        done=committed(run),
        steps=run["steps"],
        trials=f"{progress.get('done', 0)} of {total} trials" if total > 1 else "",
        cluster=cluster_text(run["cluster"]),
        commit=text.short(run.get("commit")) + ("+" if run.get("dirty") else ""),
        recoveries=run["recoveries"],
        created=text.clock(run["created_at"]),
        age=text.age(run["created_at"], now),
        took=text.span(run.get("started_at"), run.get("finished_at"), now) if run.get("started_at") else text.NONE,
        seeded=bool(run.get("seeded")),
    )


def committed(run: Json) -> int:
    """Steps are counted from 0, so the last committed step k makes k + 1 committed steps."""
    return 0 if run.get("step") is None else int(run["step"]) + 1


def cluster_text(cluster: Json) -> str:
    ranks = cluster["nodes"] * cluster["ranks_per_node"]
    nodes, spares = text.plural(cluster["nodes"], "node"), text.plural(cluster["spares"], "spare")
    return f"{text.plural(ranks, 'rank')} on {nodes}, {spares}"
