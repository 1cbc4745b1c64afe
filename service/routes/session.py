"""Signing in and out of the pages: a token is shown once, a cookie stands for it afterwards."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from service import audit, tokens
from service.access import COOKIE, address_of, check_csrf
from service.callers import LOCAL, Caller, Role
from service.control_tables import Token
from service.problems import Problem
from service.routes.common import PROBLEMS, ServiceOf
from service.shapes import Shape

router = APIRouter(tags=["session"], responses=PROBLEMS)


class Login(Shape):
    token: Annotated[str, Field(min_length=1, max_length=200)]


class SessionShape(Shape):
    """`required`: without a token nothing can be seen. `csrf`: what a change must carry in the header X-CSRF-Token."""

    required: bool
    authenticated: bool
    name: str | None
    role: Role | None
    csrf: str | None
    expires_at: datetime | None


@router.get("/session")
def get_session(service: ServiceOf, request: Request) -> SessionShape:
    """Who the browser's cookie stands for; never an error."""
    with service.database.read() as session:
        if not service.gate.required(session):
            return _of_caller(LOCAL, required=False)
        cookie = request.cookies.get(COOKIE)
        found = tokens.find_session(session, cookie) if cookie else None
        if cookie is None or found is None:
            return SessionShape(required=True, authenticated=False, name=None, role=None, csrf=None, expires_at=None)
        return _of_token(found[1], cookie, found[0].expires_at)


@router.post("/session", status_code=201, response_model=SessionShape)
def sign_in(service: ServiceOf, request: Request, body: Login) -> Response:
    """Show a token, get a cookie. Wrong ones are counted: too many from one address have to wait."""
    with service.database.write() as session:
        token = service.gate.of_token(session, body.token, address_of(request))
        if isinstance(token, Caller):
            raise Problem(401, "wrong-token", "this is not a token of a person")
        login = tokens.begin_session(session, token)
        audit.record(session, Caller(name=token.name, role=Role(token.role)), "session.begin", token.id)
        shape = _of_token(token, login.cookie, login.expires_at)
    answer = JSONResponse(shape.model_dump(mode="json"), status_code=201)
    answer.set_cookie(
        COOKIE,
        login.cookie,
        max_age=int(tokens.SESSION_LASTS.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.delete("/session", response_model=SessionShape)
def sign_out(service: ServiceOf, request: Request) -> Response:
    """The cookie stands for nobody afterwards."""
    cookie = request.cookies.get(COOKIE)
    with service.database.write() as session:
        if cookie and tokens.find_session(session, cookie) is not None:
            check_csrf(request, cookie)
            tokens.end_session(session, cookie)
        required = service.gate.required(session)
    shape = SessionShape(
        required=required, authenticated=not required, name=None, role=None, csrf=None, expires_at=None
    )
    answer = JSONResponse(shape.model_dump(mode="json"))
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _of_caller(caller: Caller, *, required: bool) -> SessionShape:
    return SessionShape(
        required=required, authenticated=True, name=caller.name, role=caller.role, csrf=None, expires_at=None
    )


def _of_token(token: Token, cookie: str, expires_at: datetime) -> SessionShape:
    return SessionShape(
        required=True,
        authenticated=True,
        name=token.name,
        role=Role(token.role),
        csrf=tokens.csrf_of(cookie),
        expires_at=expires_at,
    )
