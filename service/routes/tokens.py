"""Tokens: make, list, revoke. The token itself is told once, when it is made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field
from sqlalchemy import select

from service import tokens
from service.access import CallerOf
from service.callers import Role
from service.control_tables import Token
from service.idempotency import Answer, once
from service.paging import page
from service.patterns import ONE_LINE
from service.problems import Problem, not_found
from service.routes.common import IDEMPOTENT, MOST_ITEMS, PROBLEMS, Cursor, Id, Limit, ServiceOf
from service.shapes import Moment, Reason, Shape, Why, text_of
from service.store import now

router = APIRouter(tags=["tokens"], responses=PROBLEMS)

MOST_NAME = 100


class NewToken(Shape):
    name: Annotated[
        str, text_of(MOST_NAME), Field(pattern=ONE_LINE, description="Who uses it; the audit log says this name.")
    ]
    role: Role = Role.OPERATOR
    expires_at: Moment | None = None
    reason: Reason = ""


class TokenShape(Shape):
    """`token` is there only in the answer that made it."""

    id: str
    name: str
    role: Role
    created_at: datetime
    created_by: str
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    valid: bool
    token: str | None = None


class Revocation(Why):
    """`force`: also where it is the only valid token of an admin."""

    force: bool = False


NO_REASON = Revocation()


class TokenList(Shape):
    items: list[TokenShape]
    next: str | None


@router.get("/tokens")
def list_tokens(service: ServiceOf, limit: Limit = MOST_ITEMS, cursor: Cursor = None) -> TokenList:
    """All that were ever made, oldest first; only hashes are kept of them."""
    with service.database.read() as session:
        found, following = page(session, select(Token), (Token.created_at, Token.id), limit=limit, cursor=cursor)
        return TokenList(items=[token_shape(token) for token in found], next=following)


@router.post("/tokens", status_code=201, response_model=TokenShape, openapi_extra=IDEMPOTENT)
def create_token(service: ServiceOf, caller: CallerOf, request: Request, body: NewToken) -> Response:
    """From the first one on, every request needs one."""
    if body.expires_at is not None and body.expires_at <= now():
        raise Problem(422, "invalid-request", "expires_at: lies in the past")
    with service.database.write() as session:

        def effect() -> Answer:
            if tokens.count_valid(session, Role.ADMIN) == 0 and body.role is not Role.ADMIN:
                detail = "the first token must be an admin's: nobody could make or revoke another one without it"
                raise Problem(409, "no-admin", detail)
            token, text = tokens.create(session, caller, body.name, body.role, body.expires_at, body.reason)
            shape = token_shape(token).model_copy(update={"token": text})
            return Answer(status=201, body=shape, location="/api/v1/tokens", secret="token")

        return once(session, request, body, effect)


@router.post("/tokens/{token_id}/revoke", status_code=200, response_model=TokenShape, openapi_extra=IDEMPOTENT)
def revoke_token(
    service: ServiceOf, caller: CallerOf, request: Request, token_id: Id, body: Revocation = NO_REASON
) -> Response:
    """It and the sessions begun with it are refused from now on. The body may be left out."""
    with service.database.write() as session:

        def effect() -> Answer:
            if (token := session.get(Token, token_id)) is None:
                raise not_found("token", token_id)
            if not body.force and tokens.is_last_admin(session, token):
                raise Problem(409, "last-admin", tokens.LAST_ADMIN)
            tokens.revoke(session, caller, token, body.reason)
            return Answer(status=200, body=token_shape(token))

        return once(session, request, body, effect)


def token_shape(token: Token) -> TokenShape:
    over = token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now())
    return TokenShape(
        id=token.id,
        name=token.name,
        role=Role(token.role),
        created_at=token.created_at,
        created_by=token.created_by,
        last_used_at=token.last_used_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        revoked_by=token.revoked_by,
        valid=not over,
    )
