"""Tokens and sessions in the database: make, find, revoke.

A token is `phx_<id>_<secret>`, the secret 256 random bits; the database keeps its SHA-256. A slow hash would protect
passwords that people choose, which these are not.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from service import audit
from service.callers import Caller, Role
from service.control_tables import LoginSession, Token
from service.store import now

SESSION_LASTS = timedelta(hours=12)
_TOKEN = re.compile(r"phx_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
LAST_ADMIN = (
    "this is the only valid token of an admin: without it others are made and revoked beside the database only; "
    'make another one first (phoenix tokens create NAME --role admin), or say --force (by REST: "force": true)'
)
# When a token was used last is told to the minute: written at each use it would make every read a write.
_USE_TOLD = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class Login:
    """A session that was just made. `cookie` exists here and in the browser only."""

    cookie: str
    expires_at: datetime


def create(
    session: Session, caller: Caller, name: str, role: Role, expires_at: datetime | None, reason: str = ""
) -> tuple[Token, str]:
    """The row, and the token itself, which nobody can find out later."""
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    token = Token(
        id=identity,
        name=name,
        role=role,
        hash=_hash(secret),
        created_at=now(),
        created_by=caller.name,
        expires_at=expires_at,
    )
    session.add(token)
    audit.record(session, caller, "token.create", identity, reason=reason, detail={"name": name, "role": role})
    return token, f"phx_{identity}_{secret}"


def revoke(session: Session, caller: Caller, token: Token, reason: str) -> None:
    """Sessions that were begun with it end as well. Revoking again changes nothing."""
    if token.revoked_at is None:
        token.revoked_at, token.revoked_by = now(), caller.name
        audit.record(session, caller, "token.revoke", token.id, reason=reason, detail={"name": token.name})
    session.execute(delete(LoginSession).where(LoginSession.token_id == token.id))


def is_last_admin(session: Session, token: Token) -> bool:
    """Without it every other one could be made or revoked beside the database only."""
    valid = session.scalar(select(Token.id).where(Token.id == token.id, Token.role == Role.ADMIN, *_valid()))
    return valid is not None and count_valid(session, Role.ADMIN) == 1


def all_tokens(session: Session) -> Sequence[Token]:
    return session.scalars(select(Token).order_by(Token.created_at, Token.id)).all()


def count_valid(session: Session, role: Role | None = None) -> int:
    query = select(func.count()).select_from(Token).where(*_valid())
    return session.scalar(query if role is None else query.where(Token.role == role)) or 0


def any_made(session: Session) -> bool:
    """Also a revoked one: whoever revokes the last token does not open the service by it."""
    return session.scalar(select(Token.id).limit(1)) is not None


def find(session: Session, text: str) -> Token | None:
    """The valid token of this text."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    token = session.scalars(select(Token).where(Token.id == match[1], *_valid())).one_or_none()
    return token if token is not None and hmac.compare_digest(token.hash, _hash(match[2])) else None


def use_is_told(token: Token) -> bool:
    return token.last_used_at is not None and now() - token.last_used_at < _USE_TOLD


def begin_session(session: Session, token: Token) -> Login:
    cookie, begun = secrets.token_urlsafe(32), now()
    until = min(begun + SESSION_LASTS, token.expires_at or begun + SESSION_LASTS)
    session.execute(delete(LoginSession).where(LoginSession.expires_at <= begun))
    session.add(LoginSession(id=_hash(cookie), token_id=token.id, created_at=begun, expires_at=until))
    return Login(cookie=cookie, expires_at=until)


def find_session(session: Session, cookie: str) -> tuple[LoginSession, Token] | None:
    query = (
        select(LoginSession, Token)
        .join(Token, Token.id == LoginSession.token_id)
        .where(LoginSession.id == _hash(cookie), LoginSession.expires_at > now(), *_valid())
    )
    row = session.execute(query).one_or_none()
    return None if row is None else (row[0], row[1])


def end_session(session: Session, cookie: str) -> None:
    session.execute(delete(LoginSession).where(LoginSession.id == _hash(cookie)))


def csrf_of(cookie: str) -> str:
    """What a page must show with each change; a foreign page that makes the browser send the cookie cannot know it."""
    return _hash(f"csrf {cookie}")


def _valid() -> tuple[ColumnElement[bool], ...]:
    return Token.revoked_at.is_(None), or_(Token.expires_at.is_(None), Token.expires_at > now())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
