"""The fault console: strike a running run, take faults back, halt them all, and what this host can inject."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from dashboards import forms, text
from dashboards.api import Api, Json
from dashboards.pages.runs import run_row
from dashboards.pages.shown import Shown
from dashboards.recovery import fault_rows

MOST_RUNNING = 20
MOST_HALTS = 5


async def page(request: Request, api: Api) -> Shown:
    running, kinds, workloads, halts = await asyncio.gather(
        api.items("runs", state="RUNNING", limit=MOST_RUNNING),
        api.items("fault-kinds"),
        api.items("workloads"),
        api.items("halts", limit=MOST_HALTS),
    )
    wanted = request.query_params.get("run")
    open_to_faults = [run for run in running if forms.can_strike(run)]
    run = next((run for run in open_to_faults if run["id"] == wanted), open_to_faults[0] if open_to_faults else None)
    faults = await api.items("runs", run["id"], "faults") if run else []
    now = datetime.now(UTC)
    context: dict[str, Any] = {
        "run": run,
        "wanted": wanted,
        "running": [run_row(item, now) for item in open_to_faults],
        "form": forms.fault_form(run, kinds, workloads) if run else None,
        "faults": fault_rows(faults, {}),
        "kinds": forms.kinds(kinds),
        "supported": sum(1 for kind in kinds if kind.get("supported", True)),
        "halts": [halt_row(halt, now) for halt in halts],
        "seeded": False,
    }
    return Shown(template="faults.html", context=context)


def halt_row(halt: Json, now: datetime) -> dict[str, Any]:
    return {
        "halt": halt,
        "at": text.clock(halt["at"]),
        "age": text.age(halt["at"], now),
        "ended": _ended(halt),
        "did": _did(halt),
    }


def _ended(halt: Json) -> str:
    """When and how, in words that go on from who halted."""
    if halt["active"]:
        return f"until {text.clock(halt['until'])}" if halt.get("until") else "until released"
    if not halt.get("released_at"):
        return f"over since {text.clock(halt.get('until'))}"
    why = f" (“{halt['release_reason']}”)" if halt.get("release_reason") else ""
    return f"released {text.clock(halt['released_at'])} by {halt.get('released_by') or 'somebody'}{why}"


def _did(halt: Json) -> str:
    reverts, withdraws = int(halt.get("reverts") or 0), int(halt.get("withdraws") or 0)
    return f"{text.plural(reverts, 'fault')} taken back, {text.plural(withdraws, 'fault')} withdrawn"
