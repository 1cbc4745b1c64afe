"""`/docs`: the REST API to read and try out, served from an installed package, so that nothing comes from outside."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse

from service.problems import not_found

router = APIRouter(include_in_schema=False)

SCRIPT: Final = Path(__file__).parents[1] / "static" / "docs.js"
# Swagger UI draws its marks as data: images in its style sheet, and sets styles of its own as it draws.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>PHOENIX REST API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="docs"><p>The document itself is at <a href="/openapi.json">/openapi.json</a>.</p></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/docs.js"></script>
</body>
</html>
"""
FILES: Final = ("swagger-ui.css", "swagger-ui-bundle.js")


@router.get("/docs")
def docs() -> HTMLResponse:
    return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY})


@router.get("/docs/{name}")
def docs_file(name: str) -> Response:
    """The page's own script, and what the package brings."""
    if name == SCRIPT.name:
        return FileResponse(SCRIPT, media_type="text/javascript", headers={"Cache-Control": "no-cache"})
    directory = _package()
    if name not in FILES or directory is None:
        raise not_found("file", name)
    return FileResponse(directory / name, headers={"Cache-Control": "public, max-age=86400"})


@cache
def _package() -> Path | None:
    """Where fastapi-offline keeps Swagger UI; nothing of it is imported."""
    spec = importlib.util.find_spec("fastapi_offline")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "static"
