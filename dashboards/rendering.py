"""From a template and its values to an answer; Plotly's script from its installed wheel."""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboards import text
from dashboards.figures import clean

HEADERS = {
    # No 'unsafe-inline' anywhere: Plotly writes style elements of its own only where the page does not already
    # hold elements of their ids (see chart_stubs), and sets all other styles through the object model.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render(template: str, status: int = 200, **context: object) -> HTMLResponse:
    page = templates().get_template(template).render({**chart_context(), **context})
    return HTMLResponse(page, status, dict(HEADERS))


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
        milliseconds=text.milliseconds,
        on_clock=text.on_clock,
        clock=text.clock,
        short_clock=text.short_clock,
        duration=text.duration,
        number=text.number,
        plural=text.plural,
        short=text.short,
        embed=embed,
    )
    return environment


def embed(value: object) -> Markup:
    """JSON for a data block in HTML: nothing in it can end the block or be taken for markup."""
    encoded = json.dumps(clean(value), separators=(",", ":"), allow_nan=False)
    return Markup(encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


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
