"""Machines: what each is, how noisy it is, and so how many trials tell a change of a given size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from dashboards import text
from dashboards.api import Api, Json
from dashboards.pages.shown import Shown
from dashboards.series import all_histories, history_href

CHANGES = ("5", "10", "20")


async def page(request: Request, api: Api) -> Shown:
    overview = await all_histories(api, limit=200)
    context = machines_page(overview.machines, overview.histories)
    return Shown(template="machines.html", context={**context, "seeded": overview.seeded})


def machines_page(machines: Sequence[Json], histories: Sequence[Json]) -> dict[str, Any]:
    """The context of machines.html: facts that are the same everywhere stand once, what differs is marked."""
    facts = sorted({name for item in machines for name in item.get("machine") or {}})
    return {
        "machines": machines,
        "facts": [(name, [_fact(item, name) for item in machines], differs(machines, name)) for name in facts],
        "noise": [_noise(history, noise) for history in histories for noise in history["noise"]],
        "changes": CHANGES,
    }


def differs(machines: Sequence[Json], name: str) -> bool:
    return len({_fact(item, name) for item in machines}) > 1


def _fact(item: Json, name: str) -> str:
    value = (item.get("machine") or {}).get(name)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return text.NONE if value is None else str(value)


def _noise(history: Json, noise: Json) -> dict[str, Any]:
    needed = noise.get("needed") or {}
    return {
        "scenario": history["scenario"],
        "fault": history["fault"],
        "href": history_href(history, fingerprint=noise["fingerprint"]),
        "fingerprint": noise["fingerprint"],
        "trial_cv": _share(noise["trial_cv"]),
        "session_cv": _share(noise["session_cv"]),
        "trials": noise["trials"],
        "sessions": noise["sessions"],
        "needed": ["more than 1000" if needed.get(size) is None else str(needed[size]) for size in CHANGES]
        if needed
        else [text.NONE] * len(CHANGES),
    }


def _share(value: float | None) -> str:
    return text.NONE if value is None else f"{100 * value:.1f}{text.THIN}%"
