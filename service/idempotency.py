"""`Idempotency-Key`: a POST that is sent again gets the answer of the first time, and nothing happens twice.

The answer is stored in the transaction that has the effect, so that there is no instant at which
one exists without the other. A key belongs to one request: with another body it is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.orm import Session

from service.problems import Problem
from service.store import now
from service.tables import IdempotencyKey

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a POST answers; `location` names what was made. `secret`: a field that is told once and never stored."""

    status: int
    body: BaseModel
    location: str | None = None
    secret: str | None = None


def once(session: Session, request: Request, body: BaseModel, effect: Callable[[], Answer]) -> Response:
    """Call `effect` in the caller's write transaction, unless this request was answered before."""
    key = request.headers.get(HEADER)
    if key is None:
        return _answer(effect())
    if not 1 <= len(key) <= 200:
        raise Problem(400, "invalid-idempotency-key", f"{HEADER} must have 1 to 200 characters, not {len(key)}")
    digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
    stored = session.get(IdempotencyKey, (key, request.url.path))
    if stored is not None:
        if stored.body_hash != digest:
            detail = f"the {HEADER} {key!r} was used for another request to {request.url.path}; take a new one"
            raise Problem(422, "idempotency-key-reused", detail)
        return _response(stored.status, stored.body, stored.location, replayed=True)
    answer = effect()
    document = answer.body.model_dump(mode="json")
    session.add(
        IdempotencyKey(
            key=key,
            route=request.url.path,
            body_hash=digest,
            status=answer.status,
            location=answer.location,
            body=document if answer.secret is None else {**document, answer.secret: None},
            created_at=now(),
        )
    )
    return _answer(answer)


def _answer(answer: Answer) -> Response:
    return _response(answer.status, answer.body.model_dump(mode="json"), answer.location)


def _response(status: int, document: object, location: str | None, *, replayed: bool = False) -> Response:
    headers = {"Location": location} if location else {}
    if replayed:
        headers[REPLAYED] = "true"
    return JSONResponse(document, status_code=status, headers=headers)
