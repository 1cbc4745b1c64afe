"""Settings: tokens, webhooks, what is kept for how long, notes, and who changed what."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json
from dashboards.frame import ROLES
from dashboards.pages.shown import Shown

AUDIT = 30
DELIVERIES = 5
EVENTS = {
    "run.started": "a run started",
    "run.ended": "a run ended",
    "run.failed": "a run did not pass",
    "schedule.failed": "a schedule could not start its run",
    "schedule.stale": "no run of a schedule has ended for too long",
    "halt": "faults were halted",
}
MARKED = ("run.failed", "schedule.failed", "schedule.stale")
"""What most want to be told."""


async def page(request: Request, api: Api) -> Shown:
    tokens, webhooks, notes, audit = await asyncio.gather(
        api.allowed_items("tokens"),
        api.allowed_items("webhooks"),
        api.items("annotations"),
        api.allowed_items("audit", limit=AUDIT),
    )
    deliveries = await asyncio.gather(
        *(api.items("webhooks", hook["id"], "deliveries", limit=DELIVERIES) for hook in webhooks or [])
    )
    now = datetime.now(UTC)
    context: dict[str, Any] = {
        "tokens": None if tokens is None else [token_view(token, now) for token in tokens],
        "webhooks": None if webhooks is None else list(zip(webhooks, deliveries, strict=True)),
        "notes": [{**note, "when": text.clock(note.get("at"))} for note in notes],
        "audit": None if audit is None else [{**entry, "when": text.clock(entry["at"])} for entry in audit],
        "roles": ROLES,
        "events": EVENTS,
        "marked": MARKED,
        "seeded": False,
    }
    return Shown(template="settings.html", context=context)


def token_view(token: Json, now: datetime) -> dict[str, Any]:
    expired = (moment := text.parse_time(token.get("expires_at"))) is not None and moment <= now
    state = "revoked" if token.get("revoked_at") else "expired" if expired else "valid"
    return {
        "token": token,
        "state": state,
        "created": text.clock(token["created_at"]),
        "used": text.age(token.get("last_used_at"), now) if token.get("last_used_at") else "never",
        "expires": text.clock(token["expires_at"]) if token.get("expires_at") else "never",
    }
