"""ETags for what the API answers: whoever has it already gets 304 and no body, whoever changes it says what he saw."""

from __future__ import annotations

import hashlib

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import Problem

IF_MATCH = "If-Match"


def tag_of(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def check_unchanged(request: Request, present: bytes) -> None:
    """A change in place needs the tag of what it replaces, else the change of somebody in between would be lost.

    `present` is what a GET of the resource answers now. Raises Problem 428 (no tag) or 412 (the tag of something else).
    """
    given = request.headers.get(IF_MATCH)
    if given is None:
        detail = f"send {IF_MATCH} with the ETag that GET {request.url.path} answered (or `*`: whatever is there)"
        raise Problem(428, "precondition-required", detail)
    if given.strip() != "*" and tag_of(present) not in _tags(given):
        detail = f"it was changed since you read it: GET {request.url.path} again, and send the ETag of that"
        raise Problem(412, "changed-meanwhile", detail, headers={"ETag": f"W/{tag_of(present)}"})


class ETags:
    """ASGI middleware for JSON that was read or put. Streams and errors pass through as they are.

    The answer is made in any case: what is saved is the way to the client, and the client's work.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "PUT"):
            await self.app(scope, receive, send)
            return
        known = Headers(scope=scope).get("if-none-match", "") if scope["method"] == "GET" else ""
        answer = _Answer(known, send)
        await self.app(scope, receive, answer.send)


class _Answer:
    """Keeps the head back until the body is there, if it is one that gets a tag."""

    def __init__(self, known: str, send: Send) -> None:
        self._known = _tags(known)
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_tagged(message):
            self._start = message
            return
        if self._start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body", False):
            await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        tag = tag_of(self._body)
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["ETag"] = f"W/{tag}"
        headers["Cache-Control"] = "private, no-cache"
        if tag in self._known:
            del headers["Content-Length"]
            del headers["Content-Type"]
            start, self._body = {**start, "status": 304}, b""
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": self._body})


def _is_tagged(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("content-type", "").startswith("application/json")


def _tags(header: str) -> set[str]:
    """Weak ones too: a proxy that compresses makes every tag weak."""
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}
