"""Keeps foreign web pages out of a service that trusts whoever reaches 127.0.0.1.

A page in the user's browser can send requests here under a name of its own (DNS rebinding) or
with its own Origin; both are refused before any route sees them.
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.dependencies.models import Dependant
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import Problem, problem_response

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# A scenario with a hundred faults takes 20 kB.
MOST_BYTES = 1_000_000


async def only_known_parameters(request: Request) -> None:
    """Refuse a misspelt query parameter: ignored, it would give the first page for ever, or everything unfiltered."""
    known = sorted(_query_names(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            hint = f"this resource knows {', '.join(known)}" if known else "this resource knows none"
            raise Problem(422, "unknown-parameter", f"there is no query parameter {name!r}: {hint}")


async def only_text(request: Request) -> None:
    """Refuse a NUL in path or query: no name has one, and PostgreSQL takes none."""
    if "\0" in request.url.path or any("\0" in f"{name}{value}" for name, value in request.query_params.multi_items()):
        raise Problem(422, "invalid-request", "the address holds a NUL character; nothing here has one in its name")


async def only_json(request: Request) -> None:
    """Refuse a body that does not say that it is JSON: it would not be read, and all of its fields be missing."""
    headers = request.headers
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if has_body and request.method not in SAFE_METHODS and kind != "application/json":
        said = f"not {kind}" if kind else "which is missing"
        hint = "the body must be JSON, and the header Content-Type must say so: application/json"
        raise Problem(415, "not-json", f"{hint}, {said} (curl: -H 'Content-Type: application/json')")
    if has_body:
        _refuse_unstorable(await request.body())


def _refuse_unstorable(body: bytes) -> None:
    """JSON can carry NUL characters and halves of surrogate pairs, which are no text that can be kept.

    Python's reader also takes them as they are, which no UTF-8 holds, and other encodings than UTF-8, which is the only
    one that JSON has between machines.
    """
    try:
        told = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Problem(422, "invalid-request", f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    if "\\u" not in told:
        return
    try:
        text = json.dumps(json.loads(told), ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise Problem(422, "invalid-request", "the body holds half of a surrogate pair, which is no text") from None
    except (ValueError, RecursionError):
        return  # Whoever reads it says what is wrong with it.
    if "\\u0000" in text:
        raise Problem(422, "invalid-request", "the body holds a NUL character (\\u0000), which cannot be kept")


def _query_names(dependant: Dependant) -> set[str]:
    below = [_query_names(other) for other in dependant.dependencies]
    return {field.alias for field in dependant.query_params}.union(*below)


class LocalOnly:
    """ASGI middleware; `names` are the host names under which this service may be addressed (None: any).

    Any name will do where every request needs a token: a page under a name of its own has no cookie of ours.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str] | None = LOCAL_NAMES) -> None:
        self.app = app
        self.names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (reason := self._refusal(scope["method"], Headers(scope=scope))):
            await problem_response(403, reason, code="foreign-request", instance=scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> str:
        host = headers.get("host", "")
        if self.names is not None and _host_name(host) not in self.names:
            return f"this service answers to 127.0.0.1 and localhost, not to {host!r}"
        origin = headers.get("origin")
        if method not in SAFE_METHODS and origin is not None and _netloc(origin) != host:
            return f"a page of {origin} may not change anything here"
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # such as an unclosed bracket
        return ""


class SafeAnswers:
    """ASGI middleware: what the API answers is data, and no browser shall take it for anything else."""

    HEADERS = (
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    )

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                more = [(name, value) for name, value in self.HEADERS if name not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self.app(scope, receive, send_safely if scope["type"] == "http" else send)


class SmallBodies:
    """ASGI middleware that refuses a body of more than `most` bytes: by its announced length, or as soon as it is seen.

    What is too much is never kept: a body without a length is cut off while it comes.
    """

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self.app = app
        self.most = most
        self._refusal = f"a body may have at most {most} bytes; a scenario takes a few hundred"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = 0

        async def receive_little() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(413, self._refusal)
            return message

        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self.most:
            await problem_response(413, self._refusal, instance=scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive_little, send)
