"""Schedules and the services that work off the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json
from dashboards.pages.shown import Shown

FIRINGS = 10
OVERLAPS = {
    "skip": "skip this one",
    "queue": "queue it behind",
    "cancel_previous": "cancel the one that runs",
}


async def page(request: Request, api: Api) -> Shown:
    schedules, services, queue, scenarios, suites, webhooks = await asyncio.gather(
        api.items("schedules"),
        api.items("services"),
        api.get("queue"),
        api.items("scenarios"),
        api.items("suites"),
        api.allowed_items("webhooks"),
    )
    firings = await asyncio.gather(
        *(api.items("schedules", item["id"], "firings", limit=FIRINGS) for item in schedules)
    )
    now = datetime.now(UTC)
    context: dict[str, Any] = {
        "schedules": [schedule_view(*pair, now) for pair in zip(schedules, firings, strict=True)],
        "services": [service_view(item, now) for item in services],
        "queue": queue,
        "targets": [(f"suite:{item['name']}", f"suite {item['name']}") for item in suites]
        + [(f"scenario:{item['name']}", item["name"]) for item in scenarios],
        "webhooks": webhooks or [],
        "overlaps": OVERLAPS,
        "seeded": False,
    }
    return Shown(template="schedules.html", context=context)


def schedule_view(schedule: Json, firings: Sequence[Json], now: datetime) -> dict[str, Any]:
    last = schedule.get("last")
    run = schedule.get("run") or {}
    due = schedule.get("next_due")
    return {
        "schedule": schedule,
        "when": when_text(schedule),
        "what": run.get("suite") or run.get("scenario_name") or text.NONE,
        "revision": run.get("revision") or "",
        "trials": text.plural(run["trials"], "trial") if int(run.get("trials") or 1) > 1 else "",
        "next": text.clock(due),
        "in": text.until(due, now) if due else "over",
        "last": last,
        "last_age": text.age(last.get("fired_at") or last.get("due_at"), now) if last else text.NONE,
        "stale_after": text.duration(schedule.get("stale_after_s")),
        "overlap": OVERLAPS.get(schedule["overlap"], schedule["overlap"]),
        "grace": text.duration(schedule.get("misfire_grace_s")),
        "firings": [{**firing, "due": text.clock(firing["due_at"])} for firing in firings],
    }


def when_text(schedule: Json) -> str:
    if schedule["kind"] == "cron":
        return f"{schedule['cron']} ({schedule['timezone']})"
    if schedule["kind"] == "interval":
        return f"every {text.duration(schedule['every_s'])}"
    return f"once, {text.clock(schedule['at'])}"


def service_view(service: Json, now: datetime) -> dict[str, Any]:
    ended = "stopped" if service.get("stopped_at") else "gone"
    return {
        "service": service,
        "state": "alive" if service["alive"] else ended,
        "heartbeat": text.age(service.get("heartbeat_at"), now),
        "started": text.age(service.get("started_at"), now),
    }
