"""Signing in with a token."""

from __future__ import annotations

from starlette.requests import Request

from dashboards.api import Api
from dashboards.pages.shown import Shown


async def page(request: Request, api: Api) -> Shown:
    return Shown(template="login.html", context={"next": own_path(request.query_params.get("next", "/"))})


def own_path(wanted: str) -> str:
    """Where to go afterwards: a path of these pages, never an address elsewhere that somebody slipped into a link."""
    plain = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if plain else "/"
