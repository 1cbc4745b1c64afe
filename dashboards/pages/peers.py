"""Peers: PHOENIX beside other runtimes, as a benchmark of this checkout has published it."""

from __future__ import annotations

from starlette.requests import Request

from dashboards.api import Api, NotFound
from dashboards.pages.shown import Shown


async def page(request: Request, api: Api) -> Shown:
    try:
        found = await api.get("peers")
    except NotFound as error:
        return Shown(template="peers.html", context={"found": None, "why": error.detail})
    return Shown(template="peers.html", context={"found": found, "why": ""})
