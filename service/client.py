"""The REST API from the command line: JSON in, JSON out, and errors as one sentence."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import httpx

Json = dict[str, Any]


class ClientError(Exception):
    """The service refused (`status`) or did not answer (`status` None); the message is for people."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Calls one service. Proxies of the environment are not used: it is on this machine."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int) -> Json:
        """Raises ClientError."""
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, object]) -> Json:
        """Each call is one request with a key of its own. Raises ClientError."""
        return self._call("POST", path, json=dict(body), headers={"Idempotency-Key": secrets.token_hex(16)})

    def ready(self) -> bool:
        try:
            return self._http.get("/readyz").is_success
        except httpx.HTTPError:
            return False

    def _call(self, method: str, path: str, **more: Any) -> Json:
        try:
            answer = self._http.request(method, f"/api/v1{path}", **more)
        except httpx.HTTPError as error:
            raise ClientError(f"no service answers at {self.url} ({error or type(error).__name__})") from error
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ClientError(f"{method} {self.url}{path}: not an answer of a PHOENIX service", answer.status_code)
        if answer.is_success:
            return document
        raise ClientError(str(document.get("detail") or document.get("title")), answer.status_code)
