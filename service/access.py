"""Finds out who calls, and refuses what they may not do.

Without tokens the service is reached from this machine only, and everybody is its administrator. As soon as there is
one, or where it listens on another address, each request needs a token (`Authorization: Bearer`) or the session of a
browser.
"""

from __future__ import annotations

import hmac
from typing import Annotated, cast

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from service import tokens
from service.callers import LOCAL, Caller, Role
from service.control_tables import Token
from service.gate import CHALLENGE, Gate
from service.guard import SAFE_METHODS
from service.problems import Problem
from service.routes.common import ServiceOf, service_of
from service.store import now

COOKIE = "phoenix_session"
CSRF_HEADER = "X-CSRF-Token"


def caller_of(request: Request, service: ServiceOf) -> Caller:
    """Raises Problem 401, 403 (CSRF) or 429. The same for all dependencies of one request."""
    known = getattr(request.state, "caller", None)
    if known is not None:
        return cast("Caller", known)
    with service.database.read() as session:
        caller, unused = _find(request, session, service.gate)
    if unused is not None:
        with service.database.write() as session:
            session.get_one(Token, unused).last_used_at = now()
    request.state.caller = caller
    return caller


def _find(request: Request, session: Session, gate: Gate) -> tuple[Caller, str | None]:
    """The caller, and the token whose use is still to be told."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found = gate.of_token(session, text.strip(), address_of(request))
        return (found, None) if isinstance(found, Caller) else _of_row(found, session=False)
    if (cookie := request.cookies.get(COOKIE)) and (pair := tokens.find_session(session, cookie)) is not None:
        if request.method not in SAFE_METHODS:
            check_csrf(request, cookie)
        return _of_row(pair[1], session=True)
    if gate.required(session):
        detail = "this service needs a token: Authorization: Bearer TOKEN (phoenix tokens create makes one)"
        raise Problem(401, "token-needed", detail, headers=CHALLENGE)
    return LOCAL, None


def _of_row(token: Token, *, session: bool) -> tuple[Caller, str | None]:
    caller = Caller(name=token.name, role=Role(token.role), session=session)
    return caller, None if tokens.use_is_told(token) else token.id


def check_csrf(request: Request, cookie: str) -> None:
    shown = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(shown.encode(), tokens.csrf_of(cookie).encode()):
        detail = f"a change by a browser's session needs the header {CSRF_HEADER}; GET /api/v1/session tells its value"
        raise Problem(403, "csrf", detail)


def address_of(request: Request) -> str:
    return request.client.host if request.client else "nowhere"


CallerOf = Annotated[Caller, Depends(caller_of)]


def _needs(role: Role, request: Request) -> None:
    caller = caller_of(request, service_of(request))
    if not caller.role.includes(role):
        detail = f"this needs the role {role}; {caller.name} has {caller.role}"
        raise Problem(403, "forbidden", detail, needs=role)


def for_operators(request: Request) -> None:
    """Viewers may look; a change needs an operator."""
    _needs(Role.VIEWER if request.method in SAFE_METHODS else Role.OPERATOR, request)


def for_admins(request: Request) -> None:
    _needs(Role.ADMIN, request)


def for_readers(request: Request) -> None:
    _needs(Role.VIEWER, request)
