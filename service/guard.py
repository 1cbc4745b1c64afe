"""Keeps foreign web pages out of a service that trusts whoever reaches 127.0.0.1.

A page in the user's browser can send requests here under a name of its own (DNS rebinding) or
with its own Origin; both are refused before any route sees them.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request
from fastapi.dependencies.models import Dependant
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.problems import Problem, problem_response

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def only_known_parameters(request: Request) -> None:
    """Refuse a misspelt query parameter: ignored, it would give the first page for ever, or everything unfiltered."""
    known = sorted(_query_names(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            hint = f"this resource knows {', '.join(known)}" if known else "this resource knows none"
            raise Problem(422, "unknown-parameter", f"there is no query parameter {name!r}: {hint}")


def _query_names(dependant: Dependant) -> set[str]:
    below = [_query_names(other) for other in dependant.dependencies]
    return {field.alias for field in dependant.query_params}.union(*below)


class LocalOnly:
    """ASGI middleware; `names` are the host names under which this service may be addressed."""

    def __init__(self, app: ASGIApp, names: frozenset[str] = LOCAL_NAMES) -> None:
        self.app = app
        self.names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (reason := self._refusal(scope["method"], Headers(scope=scope))):
            await problem_response(403, reason, code="foreign-request", instance=scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> str:
        host = headers.get("host", "")
        if (urlsplit(f"//{host}").hostname or "") not in self.names:
            return f"this service answers to 127.0.0.1 and localhost, not to {host!r}"
        origin = headers.get("origin")
        if method not in SAFE_METHODS and origin is not None and urlsplit(origin).netloc != host:
            return f"a page of {origin} may not change anything here"
        return ""
