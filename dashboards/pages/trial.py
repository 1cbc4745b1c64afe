"""One trial: what was checked, and each recovery as a waterfall over the throughput around it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from dashboards import text, waterfall
from dashboards.api import Api, Json
from dashboards.pages.runs import ENDED
from dashboards.pages.shown import Shown
from dashboards.recovery import STEPS_AFTER, STEPS_BEFORE, recovery_views

CHECKS = {
    "fired": "every planned fault has a receipt",
    "recovered": "every recovery went through all its phases",
    "twin": "losses and final digest equal those of the undisturbed run with the same seed, bit for bit",
    "agreement": "all ranks end with the same state",
    "no_leak": "no process, socket, memory, namespace, mount or file is left behind",
    "attribution": "the detector named those that were hit, for a cause that fits, and nobody else",
    "gpu_health": "the runtime saw each GPU's error, and did what it asks for",
    "data_once": "each rank used its data in order, none twice and none left out",
}

MOST_RECOVERIES = 40
"""Whose steps a page asks for; a trial with more has its waterfalls without throughput from there on."""


async def page(request: Request, api: Api) -> Shown:
    trial = await api.get("trials", request.path_params["id"])
    run, timeline, faults, beside = await asyncio.gather(
        api.get("runs", trial["run"]),
        api.get("trials", trial["id"], "timeline"),
        api.items("runs", trial["run"], "faults", trial=trial["id"]),
        api.get("trials", trial["id"], "baseline"),
    )
    resumed = sorted({r["resume_step"] for r in timeline["recoveries"] if r.get("resume_step") is not None})
    around = await asyncio.gather(*(_steps_around(api, trial, step) for step in resumed[:MOST_RECOVERIES]))
    steps = list({step["step"]: step for part in around for step in part}.values())
    context = trial_page(trial, timeline, faults, steps, beside, datetime.now(UTC))
    return Shown(template="trial.html", context={**context, "seeded": bool(run.get("seeded"))})


async def _steps_around(api: Api, trial: Json, step: int) -> list[Json]:
    first, most = max(-1, step - STEPS_BEFORE - 1), STEPS_BEFORE + STEPS_AFTER + 1
    return await api.items("runs", trial["run"], "steps", trial=trial["id"], after=first, limit=most)


def trial_page(
    trial: Json, timeline: Json, faults: Sequence[Json], steps: Sequence[Json], beside: Json, now: datetime
) -> dict[str, Any]:
    """The context of trial.html."""
    numbers = {fault["id"]: number for number, fault in enumerate(faults, 1)}
    return {
        "trial": trial,
        "checks": [
            (name, CHECKS.get(name, ""), check.get("verdict") or "UNKNOWN", check.get("detail") or "")
            for name, check in (trial.get("checks") or {}).items()
        ],
        "recoveries": recovery_views(timeline["recoveries"], numbers, steps, beside["medians"]),
        "beside": beside,
        "chosen": text.age(beside["baseline"]["at"], now) if beside["baseline"] else "",
        "own": beside["baseline"] is not None and beside["baseline"]["code"] == beside["code"],
        "took": text.span(trial.get("started_at"), trial.get("finished_at"), now),
        "started": text.clock(trial.get("started_at")),
        "finished": text.clock(trial.get("finished_at")),
        "ended": trial["state"] in ENDED,
        "summary_phases": list(waterfall.PHASES),
    }
