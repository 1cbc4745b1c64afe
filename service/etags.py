"""ETags for what the API answers: whoever has it already gets 304 and no body."""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ETags:
    """ASGI middleware for GETs of JSON. Streams and errors pass through as they are.

    The answer is made in any case: what is saved is the way to the client, and the client's work.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        answer = _Answer(Headers(scope=scope).get("if-none-match", ""), send)
        await self.app(scope, receive, answer.send)


class _Answer:
    """Keeps the head back until the body is there, if it is one that gets a tag."""

    def __init__(self, known: str, send: Send) -> None:
        self._known = {tag.strip().removeprefix("W/") for tag in known.split(",")}
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
        tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
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
