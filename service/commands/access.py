"""`phoenix tokens create|list|revoke`: in the database itself, or by REST with `--server`.

Whoever can read the database needs no token to make the first one.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from service.callers import Role
from service.commands.common import (
    AsJson,
    DatabaseUrl,
    Directory,
    Json,
    Reason,
    Server,
    connected,
    fail,
    opened,
    show,
    table,
)
from service.settings import MOST_DAYS

app = typer.Typer(no_args_is_help=True, help="Tokens: who may use a service that others can reach.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who uses it; the audit log says this name.")],
    role: Annotated[
        Role, typer.Option(help="viewer: look. operator: run, break, halt. admin: tokens too.")
    ] = Role.ADMIN,
    days: Annotated[
        float | None, typer.Option(min=0.001, max=MOST_DAYS, help="Valid for so many days (else: until revoked).")
    ] = None,
    reason: Reason = "",
    server: Server = None,
    directory: Directory = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it; it is told this once. From the first one on every request needs one."""
    from service import store, tokens
    from service.callers import LOCAL
    from service.patterns import ONE_LINE
    from service.routes.tokens import MOST_NAME, token_shape

    if not 1 <= len(name) <= MOST_NAME:
        fail(f"the name of a token has 1 to {MOST_NAME} characters, not {len(name)}")
    if not re.fullmatch(ONE_LINE, name):
        fail(f"the name of a token is shown in one line: leave out the control characters of {name!r}")
    expires_at = None if days is None else store.now() + timedelta(days=days)
    if server is not None:
        with connected(server, directory) as client:
            until = None if expires_at is None else expires_at.isoformat()
            body = {"name": name, "role": role.value, "expires_at": until, "reason": reason}
            answer = client.post("/tokens", body)
    else:
        with opened(directory, database, make=True) as (found, _), found.write() as session:
            if not name.strip():
                fail("the name of a token is empty: say who uses it")
            if tokens.count_valid(session, Role.ADMIN) == 0 and role is not Role.ADMIN:
                fail("the first token must be an admin's: --role admin")
            token, text = tokens.create(session, LOCAL, name.strip(), role, expires_at, reason)
            answer = {**token_shape(token).model_dump(mode="json"), "token": text}
    show(answer, as_json, lambda: str(answer["token"]))


@app.command("list")
def list_tokens(
    server: Server = None, directory: Directory = None, database: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """All tokens that were ever made, and when each was used last."""
    from service import tokens
    from service.routes.tokens import token_shape

    if server is not None:
        with connected(server, directory) as client:
            items = list(client.items("/tokens"))
    else:
        with opened(directory, database) as (found, _), found.read() as session:
            items = [token_shape(token).model_dump(mode="json") for token in tokens.all_tokens(session)]
    show({"items": items}, as_json, lambda: _table(items))


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Its id, as `phoenix tokens list` says it.")],
    force: Annotated[bool, typer.Option("--force", help="Also the only valid token of an admin.")] = False,
    reason: Reason = "",
    server: Server = None,
    directory: Directory = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a token, and the sessions begun with it, from now on."""
    from service import tokens
    from service.callers import LOCAL
    from service.control_tables import Token
    from service.routes.tokens import token_shape

    if server is not None:
        with connected(server, directory) as client:
            answer = client.revoke_token(token, reason, force=force)
    else:
        with opened(directory, database) as (found, _), found.write() as session:
            if (row := session.get(Token, token)) is None:
                fail(f"there is no token {token!r}; `phoenix tokens list` names them")
            if not force and tokens.is_last_admin(session, row):
                fail(tokens.LAST_ADMIN)
            tokens.revoke(session, LOCAL, row, reason)
            answer = token_shape(row).model_dump(mode="json")
    show(answer, as_json, lambda: f"token {answer['id']} ({answer['name']}) is revoked")


def _table(items: list[Json]) -> str:
    if not items:
        return "there is no token: the service listens on 127.0.0.1 only, and everybody there may use it"
    rows = [("ID", "NAME", "ROLE", "CREATED", "LAST USED", "STATE")]
    for item in items:
        state = "valid" if item["valid"] else "revoked" if item["revoked_at"] else "expired"
        used = str(item["last_used_at"] or "never")[:16]
        rows.append((item["id"], item["name"], item["role"], str(item["created_at"])[:16], used, state))
    return table(rows)
