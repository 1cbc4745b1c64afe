"""The pages as an ASGI application over the REST API that `api` reaches.

    GET /             the runs                 GET /runs/{id}    one run, live
    GET /trials/{id}  one trial                GET /static/...   own style, own script, Plotly of the installed wheel

A page is rendered whole by the server and needs no script to be read. The script (static/live.js)
fetches the same page again when the run's event stream speaks and swaps what changed: one rendering,
in one place.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dashboards import text, views
from dashboards.api import Api, NotFound, ServiceDown, ServiceProblem

HERE = Path(__file__).parent
HEADERS = {
    # No 'unsafe-inline' anywhere: Plotly writes style elements of its own only where the page does not already
    # hold elements of their ids (see chart_stubs), and sets all other styles through the object model.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGE_SIZE = 25
STATES = ("QUEUED", "RUNNING", *views.ENDED)

Page = Callable[[Request], Awaitable[Response]]


def create_app(api: httpx.AsyncClient) -> Starlette:
    """`api`'s base address is the root of the service; the caller closes it."""
    pages = _Pages(Api(api))
    return Starlette(
        routes=[
            Route("/", pages.runs),
            Route("/runs/{id}", pages.run),
            Route("/trials/{id}", pages.trial),
            Route("/static/plotly.min.js", plotly_script),
            Mount("/static", _Static(directory=HERE / "static")),
        ],
        exception_handlers={
            NotFound: _not_found,
            ServiceDown: _down,
            ServiceProblem: _refused,
            HTTPException: _no_page,
            Exception: _broken,
        },
    )


class _Pages:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def runs(self, request: Request) -> Response:
        state = request.query_params.get("state") or None
        cursor = request.query_params.get("cursor") or None
        page, scenarios = await asyncio.gather(
            self._api.get("runs", state=state, cursor=cursor, limit=PAGE_SIZE), self._api.items("scenarios")
        )
        now = datetime.now(UTC)
        return render(
            "runs.html",
            rows=[views.run_row(run, now) for run in page["items"]],
            state=state,
            states=STATES,
            next=page.get("next"),
            first=cursor is None,
            scenarios=[str(item["name"]) for item in scenarios],
            origin=str(request.base_url).rstrip("/"),
        )

    async def run(self, request: Request) -> Response:
        data = await self._api.run_data(request.path_params["id"])
        context = views.run_page(data, datetime.now(UTC))
        return render("run.html", origin=str(request.base_url).rstrip("/"), **context, **chart_context())

    async def trial(self, request: Request) -> Response:
        trial = await self._api.get("trials", request.path_params["id"])
        timeline, faults = await asyncio.gather(
            self._api.get("trials", trial["id"], "timeline"), self._api.items("runs", trial["run"], "faults")
        )
        return render("trial.html", **views.trial_page(trial, timeline, faults, datetime.now(UTC)))


class _Static(StaticFiles):
    """Own files are checked for a newer version at each use (by ETag): an update shows at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


# --- Plotly, from its installed wheel --------------------------------------------------------------------------------


@cache
def plotly_path() -> Path | None:
    """Where the wheel keeps the script; None if it is not installed. Nothing of it is imported."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


@cache
def chart_context() -> dict[str, Any]:
    """The script's address (with its version, so that it may be cached for ever) and the stub elements it needs."""
    path = plotly_path()
    if path is None:
        return {"plotly": None, "chart_stubs": ()}
    return {
        "plotly": f"/static/plotly.min.js?v={importlib.metadata.version('plotly')}",
        "chart_stubs": tuple(sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', path.read_text("utf-8"))))),
    }


@cache
def _plotly_bytes(compressed: bool) -> bytes:
    path = plotly_path()
    assert path is not None
    return gzip.compress(path.read_bytes(), 6, mtime=0) if compressed else path.read_bytes()


async def plotly_script(request: Request) -> Response:
    """Compressed once per process: 1.4 MB in place of 4.8 MB for a browser on another machine."""
    if plotly_path() is None:
        raise HTTPException(404, "Plotly is not installed beside the service, so the pages show tables only.")
    compressed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if compressed:
        headers["Content-Encoding"] = "gzip"
    content = await run_in_threadpool(_plotly_bytes, compressed)
    return Response(content, media_type="text/javascript", headers=headers)


# --- rendering -------------------------------------------------------------------------------------------------------


@cache
def templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("dashboards"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        milliseconds=text.milliseconds, on_clock=text.on_clock, clock=text.clock, number=text.number, embed=embed
    )
    return environment


def embed(value: object) -> Markup:
    """JSON for a data block in HTML: nothing in it can end the block or be taken for markup."""
    encoded = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def render(template: str, status: int = 200, **context: object) -> HTMLResponse:
    return HTMLResponse(templates().get_template(template).render(context), status, dict(HEADERS))


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotFound)
    kind = request.url.path.strip("/").partition("/")[0].rstrip("s")
    name = str(request.path_params.get("id", ""))
    title = f"There is no {kind} {name}" if name else "Not found"
    return render("error.html", 404, title=title, detail=error.detail, commands=())


async def _down(request: Request, error: Exception) -> Response:
    commands = ("phoenix serve", "curl --fail http://127.0.0.1:8642/readyz")
    title = "The service does not answer"
    return render("error.html", 503, title=title, detail=str(error), commands=commands)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceProblem)
    status = error.status if error.status < 500 else 502
    return render("error.html", status, title=f"The service says: {error.title}", detail=error.detail, commands=())


async def _broken(request: Request, error: Exception) -> Response:
    # The server raises it again after this answer, so the log has the traceback; the reader never sees it.
    detail = f"The page could not be made ({type(error).__name__}); the log of the service has the reason."
    return render("error.html", 500, title="This page is broken", detail=detail, commands=())


async def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = "There is no such page" if error.status_code == 404 else "This does not work"
    detail = error.detail if error.detail != "Not Found" else f"Nothing is served at {request.url.path}."
    return render("error.html", error.status_code, title=title, detail=detail, commands=())
