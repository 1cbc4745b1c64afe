"""The pages as an ASGI application over the REST API that `api` reaches.

    /  /runs  /runs/{id}  /trials/{id}  /history  /heatmap  /compare  /regressions  /peers  /faults  /schedules
    /machines  /settings  /login  /static/... (own styles and scripts, Plotly of the installed wheel)

A page is rendered whole by the server and needs no script to be read. The script (static/live.js)
fetches the same page again when the run's event stream speaks and swaps what changed: one rendering,
in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dashboards.api import Api, NotFound, ServiceDown, ServiceProblem, SignedOut
from dashboards.frame import Frame, empty_frame, frame_of
from dashboards.pages import (
    compare,
    faults,
    heatmap,
    history,
    home,
    login,
    machines,
    peers,
    regressions,
    run,
    runs,
    schedules,
    settings,
    trial,
)
from dashboards.pages.shown import Shown
from dashboards.rendering import plotly_script, render

HERE = Path(__file__).parent

View = Callable[[Request, Api], Awaitable[Shown]]
VIEWS: dict[str, View] = {
    "/": home.page,
    "/runs": runs.page,
    "/runs/{id}": run.page,
    "/trials/{id}": trial.page,
    "/history": history.page,
    "/heatmap": heatmap.page,
    "/compare": compare.page,
    "/regressions": regressions.page,
    "/peers": peers.page,
    "/faults": faults.page,
    "/schedules": schedules.page,
    "/machines": machines.page,
    "/settings": settings.page,
}


def create_app(client: httpx.AsyncClient) -> Starlette:
    """`client`'s base address is the root of the service; the caller closes it."""
    api = Api(client)
    return Starlette(
        routes=[
            *(Route(path, _endpoint(view, api)) for path, view in VIEWS.items()),
            Route("/login", _endpoint(login.page, api)),
            Route("/static/plotly.min.js", plotly_script),
            Mount("/static", _Static(directory=HERE / "static")),
        ],
        exception_handlers={
            SignedOut: _sign_in,
            NotFound: partial(_not_found, api),
            ServiceDown: _down,
            ServiceProblem: partial(_refused, api),
            HTTPException: partial(_no_page, api),
            Exception: partial(_broken, api),
        },
    )


def _endpoint(view: View, api: Api) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        frame, shown = await asyncio.gather(frame_of(api, request), view(request, api))
        return render(shown.template, shown.status, frame=frame, origin=frame.origin, **shown.context)

    return endpoint


class _Static(StaticFiles):
    """Own files are checked for a newer version at each use (by ETag): an update shows at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def _sign_in(request: Request, error: Exception) -> Response:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)


async def _not_found(api: Api, request: Request, error: Exception) -> Response:
    assert isinstance(error, NotFound)
    kind = request.url.path.strip("/").partition("/")[0].rstrip("s")
    name = str(request.path_params.get("id", ""))
    title = f"There is no {kind} {name}" if name else "Not found"
    return _error(await _frame(api, request), 404, title, error.detail)


async def _down(request: Request, error: Exception) -> Response:
    commands = ("phoenix serve", "curl --fail http://127.0.0.1:8642/readyz")
    return _error(empty_frame(request), 503, "The service does not answer", str(error), commands)


async def _refused(api: Api, request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceProblem)
    status = error.status if error.status < 500 else 502
    return _error(await _frame(api, request), status, f"The service says: {error.title}", error.detail)


async def _broken(api: Api, request: Request, error: Exception) -> Response:
    # The server raises it again after this answer, so the log has the traceback; the reader never sees it.
    detail = f"The page could not be made ({type(error).__name__}); the log of the service has the reason."
    return _error(await _frame(api, request), 500, "This page is broken", detail)


async def _no_page(api: Api, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = "There is no such page" if error.status_code == 404 else "This does not work"
    detail = error.detail if error.detail != "Not Found" else f"Nothing is served at {request.url.path}."
    return _error(await _frame(api, request), error.status_code, title, detail)


async def _frame(api: Api, request: Request) -> Frame:
    """With what the reader may do, above all to halt faults; where the service does not even say that, without."""
    try:
        return await frame_of(api, request)
    except (ServiceDown, ServiceProblem):
        return empty_frame(request)


def _error(frame: Frame, status: int, title: str, detail: str, commands: tuple[str, ...] = ()) -> Response:
    return render("error.html", status, frame=frame, title=title, detail=detail, commands=commands)
