"""One run, live: its loss, the faults and recoveries of its newest trial, who holds which rank, the fault form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from dashboards import forms, text, waterfall
from dashboards.api import Api, Json, RunData
from dashboards.figures import finite, loss_figure
from dashboards.pages.runs import ENDED, cluster_text, committed, run_row
from dashboards.pages.shown import Shown
from dashboards.recovery import RecoveryView, fault_rows, recovery_views

TABLE_ROWS = 60
PACE_STEPS = 50
"""So many of the last steps say how fast it goes now."""


async def page(request: Request, api: Api) -> Shown:
    data = await api.run_data(request.path_params["id"])
    return Shown(template="run.html", context=run_page(data, datetime.now(UTC)))


def run_page(data: RunData, now: datetime) -> dict[str, Any]:
    """The context of run.html."""
    run = data.run
    numbers = {fault["id"]: number for number, fault in enumerate(data.faults, 1)}
    recoveries = recovery_views(data.recoveries, numbers, data.steps)
    row = run_row(run, now)
    return {
        "run": run,
        "row": row,
        "facts": run_facts(run, now),
        "to_go": to_go(run, data.steps),
        "announcement": announcement(run, recoveries),
        "workers": sorted(data.workers, key=_worker_order),
        "faults": fault_rows(data.faults, {view.number: view for view in recoveries}),
        "recoveries": recoveries,
        "trials": data.trials,
        "figure": loss_figure(data.steps, data.faults, data.recoveries, key=run["id"]),
        "steps": table_rows(data.steps),
        "step_count": len(data.steps),
        "not_finite": sum(1 for step in data.steps if step.get("loss") is not None and not finite(step["loss"])),
        "form": forms.fault_form(run, data.kinds, data.workloads),
        "ended": run["state"] in ENDED,
        "can_strike": forms.can_strike(run),
        "summary_phases": list(waterfall.PHASES),
        "seeded": row.seeded,
    }


def run_facts(run: Json, now: datetime) -> list[tuple[str, str]]:
    commit = (run.get("commit") or "")[:12]
    facts = [
        ("Suite", run.get("suite") or ""),
        ("Scenario", run["scenario"]),
        ("Workload", run["workload"]),
        ("Runtime", run["runtime"]),
        ("Cluster", cluster_text(run["cluster"])),
        ("Seed", str(run["seed"])),
        ("Revision", run.get("revision") or ""),
        ("Commit", (f"{commit} (dirty)" if run.get("dirty") else commit) or text.NONE),
        ("Schedule", run.get("schedule") or ""),
        ("Asked for by", run.get("requested_by") or ""),
        ("Reason", run.get("reason") or ""),
        ("Created", text.clock(run["created_at"])),
        ("Started", text.clock(run.get("started_at"))),
        ("Finished", text.clock(run.get("finished_at"))),
        ("Took", text.span(run.get("started_at"), run.get("finished_at"), now)),
    ]
    return [(name, value) for name, value in facts if value]


def to_go(run: Json, steps: Sequence[Json]) -> str:
    """How long the steps that are missing take at the pace of the last ones; empty where that says nothing."""
    last = steps[-PACE_STEPS:]
    missing = run["steps"] - committed(run)
    if run["state"] != "RUNNING" or run.get("part") not in (None, "run") or len(last) < 2 or missing <= 0:
        return ""
    seconds = (last[-1]["at_s"] - last[0]["at_s"]) / (last[-1]["step"] - last[0]["step"])
    return text.duration(missing * seconds)


def announcement(run: Json, recoveries: Sequence[RecoveryView]) -> str:
    """For screen readers: changes every tenth of the run and every recovery, not with every step."""
    tenths = 10 * committed(run) // max(1, run["steps"])
    state = f"Run {run['state'].lower()}" + (
        f", {10 * tenths} percent of the steps" if run["state"] == "RUNNING" else ""
    )
    needed = [view for view in recoveries if not view.needless]
    recovered = sum(1 for view in needed if not view.picture.problem)
    counted = f"{recovered} of {len(needed)} recoveries complete" if needed else "no recovery so far"
    verdict = f" Verdict {run['verdict']}." if run.get("verdict") else ""
    return f"{state}, {counted}.{verdict}"


def table_rows(steps: Sequence[Json], most: int = TABLE_ROWS) -> list[Json]:
    """The first, the last, and steps evenly between: enough to read the chart without seeing it."""
    if len(steps) <= most:
        return list(steps)
    gap = (len(steps) - 1) / (most - 1)
    return [steps[round(index * gap)] for index in range(most)]


def _worker_order(worker: Json) -> tuple[int, int, str]:
    """Ranks in order, then spares, then those that are gone, the newest first."""
    group = {"active": 0, "starting": 1, "spare": 2}.get(worker["state"], 3)
    rank = worker.get("rank")
    order = rank if group == 0 and rank is not None else -int(1000 * (worker.get("since_s") or 0))
    return (group, order, worker["worker"])
