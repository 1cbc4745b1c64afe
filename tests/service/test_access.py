"""Who may what: tokens, roles, sessions of browsers, and how often one may guess."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service import tokens
from service.attempts import Attempts
from service.callers import LOCAL, Role
from service.context import Service, running_in
from service.control_tables import Token
from service.server import uvicorn_config
from service.settings import Settings, SettingsError
from service.store import now
from tests.service.helpers import TINY, Harness, Json, harness, problem


def made(service: Service, role: Role) -> str:
    with service.database.write() as session:
        return tokens.create(session, LOCAL, f"a {role}", role, None)[1]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def locked(api: Harness) -> dict[Role, str]:
    """A service with a token of each role."""
    return {role: made(api.service, role) for role in Role}


async def test_without_tokens_everybody_on_this_machine_is_an_admin(api: Harness) -> None:
    assert await api.get("/session") == {
        "required": False, "authenticated": True, "name": "local", "role": "admin", "csrf": None, "expires_at": None,
    }  # fmt: skip
    assert (await api.get("/tokens"))["items"] == []


async def test_roles(api: Harness, locked: dict[Role, str]) -> None:
    calls: list[tuple[str, str, Json | None, Role]] = [("GET", "/runs", None, Role.VIEWER)]
    calls += [("POST", "/runs", {"scenario": TINY}, Role.OPERATOR)]
    calls += [("POST", "/halts", {"reason": "x", "dry_run": True}, Role.OPERATOR), ("GET", "/tokens", None, Role.ADMIN)]
    calls += [("GET", "/audit", None, Role.ADMIN), ("POST", "/tokens", {"name": "new"}, Role.ADMIN)]
    for method, path, body, needed in calls:
        assert problem(await api.client.request(method, f"/api/v1{path}", json=body), 401)["detail"]
        for role, token in locked.items():
            answer = await api.client.request(method, f"/api/v1{path}", json=body, headers=bearer(token))
            if role.includes(needed):
                assert answer.is_success, (path, role, answer.text)
            else:
                assert problem(answer, 403)["needs"] == needed
    for path in ("/healthz", "/api/v1/session"):
        assert (await api.client.get(path)).status_code == 200


async def test_a_token_is_told_once_and_kept_as_a_hash(api: Harness, tmp_path: Path) -> None:
    answer = await api.post("/tokens", {"name": "ci", "role": "admin"}, **{"Idempotency-Key": "k"})
    token = answer.json()["token"]
    assert answer.status_code == 201 and token.startswith(f"phx_{answer.json()['id']}_")
    headers = bearer(token)
    again = await api.client.post(
        "/api/v1/tokens", json={"name": "ci", "role": "admin"}, headers={**headers, "Idempotency-Key": "k"}
    )
    assert again.json() == {**answer.json(), "token": None}, "also not by sending it again"
    (listed,) = (await api.client.get("/api/v1/tokens", headers=headers)).json()["items"]
    assert listed["token"] is None and listed["last_used_at"] is not None and listed["valid"]
    with api.service.database.read() as session:
        row = session.get_one(Token, listed["id"])
        assert token.split("_", 2)[2] not in str(vars(row)), "a secret may have underscores of its own"


async def test_the_first_token_is_an_admins(api: Harness) -> None:
    assert "first token" in problem(await api.post("/tokens", {"name": "ci", "role": "viewer"}), 409)["detail"]
    for name in ("two\nlines", "a\x1b[31mred", "a\x00", "\u2028"):
        problem(await api.post("/tokens", {"name": name, "role": "admin"}), 422)
    past = (now() - timedelta(days=1)).isoformat()
    problem(await api.post("/tokens", {"name": "ci", "role": "admin", "expires_at": past}), 422)


async def test_a_revoked_or_expired_token_is_refused_and_the_house_stays_closed(api: Harness) -> None:
    token = made(api.service, Role.ADMIN)
    identity = token.split("_")[1]
    revoke = f"/api/v1/tokens/{identity}/revoke"
    refusal = problem(await api.client.post(revoke, json={"reason": "lost"}, headers=bearer(token)), 409)
    assert "make another one first" in refusal["detail"]
    answer = await api.client.post(revoke, json={"reason": "lost", "force": True}, headers=bearer(token))
    assert answer.status_code == 200 and not answer.json()["valid"]
    problem(await api.client.get("/api/v1/runs", headers=bearer(token)), 401)
    problem(await api.client.get("/api/v1/runs"), 401)
    with api.service.database.write() as session:
        text = tokens.create(session, LOCAL, "short", Role.ADMIN, now() - timedelta(seconds=1))[1]
    problem(await api.client.get("/api/v1/runs", headers=bearer(text)), 401)


async def test_an_admin_may_go_while_another_one_stays(api: Harness) -> None:
    first, second = made(api.service, Role.ADMIN), made(api.service, Role.ADMIN)
    with api.service.database.write() as session:
        tokens.create(session, LOCAL, "over", Role.ADMIN, now() - timedelta(seconds=1))
    for token, status in ((first, 200), (first, 200), (second, 409)):
        revoke = f"/api/v1/tokens/{token.split('_')[1]}/revoke"
        assert (await api.client.post(revoke, headers=bearer(second))).status_code == status
    assert (await api.client.get("/api/v1/tokens", headers=bearer(second))).status_code == 200


async def test_whoever_can_read_the_data_directory_may_in(api: Harness, locked: dict[Role, str]) -> None:
    running = running_in(api.service.settings.directory)
    assert running is not None
    answer = await api.client.get("/api/v1/tokens", headers=bearer(running.secret))
    assert answer.status_code == 200
    assert (api.service.settings.directory / "service.lock").stat().st_mode & 0o077 == 0


async def test_a_browser_signs_in_changes_something_and_signs_out(api: Harness, locked: dict[Role, str]) -> None:
    client = api.client
    refused = await client.get("/api/v1/session")
    assert refused.json()["required"] and not refused.json()["authenticated"]
    problem(await client.post("/api/v1/session", json={"token": "phx_wrong"}), 401)
    answer = await client.post("/api/v1/session", json={"token": locked[Role.OPERATOR]})
    said = answer.headers["set-cookie"].lower()
    assert answer.status_code == 201 and "httponly" in said and "samesite=strict" in said and "secure" not in said
    session = (await client.get("/api/v1/session")).json()
    assert session["authenticated"] and session["role"] == "operator" and session["csrf"] == answer.json()["csrf"]
    assert (await client.get("/api/v1/runs")).status_code == 200
    body = {"scenario": TINY}
    assert problem(await client.post("/api/v1/runs", json=body), 403)["type"].endswith(":csrf")
    problem(await client.post("/api/v1/runs", json=body, headers={"x-csrf-token": "guessed"}), 403)
    run = await client.post("/api/v1/runs", json=body, headers={"x-csrf-token": session["csrf"]})
    assert run.status_code == 202 and run.json()["requested_by"] == "a operator"
    problem(await client.delete("/api/v1/session"), 403)
    cookie = client.cookies["phoenix_session"]
    assert (await client.delete("/api/v1/session", headers={"x-csrf-token": session["csrf"]})).status_code == 200
    problem(await client.get("/api/v1/runs", headers={"cookie": f"phoenix_session={cookie}"}), 401)


async def test_a_session_ends_with_its_token(api: Harness, locked: dict[Role, str]) -> None:
    assert (await api.client.post("/api/v1/session", json={"token": locked[Role.VIEWER]})).status_code == 201
    assert (await api.client.get("/api/v1/runs")).status_code == 200
    identity = locked[Role.VIEWER].split("_")[1]
    headers = bearer(locked[Role.ADMIN])
    assert (await api.client.post(f"/api/v1/tokens/{identity}/revoke", headers=headers)).status_code == 200
    problem(await api.client.get("/api/v1/runs"), 401)


async def test_the_cookie_is_secure_behind_https(api: Harness, locked: dict[Role, str]) -> None:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
        answer = await client.post("/api/v1/session", json={"token": locked[Role.VIEWER]})
        assert "secure" in answer.headers["set-cookie"].lower()


async def test_guessing_is_slowed_down_but_a_right_token_is_not(api: Harness, locked: dict[Role, str]) -> None:
    for _ in range(10):
        problem(await api.client.post("/api/v1/session", json={"token": "phx_guess"}), 401)
    answer = await api.client.post("/api/v1/session", json={"token": "phx_guess"})
    assert "try again in" in problem(answer, 429)["detail"] and 1 <= int(answer.headers["retry-after"]) <= 60
    problem(await api.client.get("/api/v1/runs", headers=bearer("phx_guess")), 429)
    assert (await api.client.get("/api/v1/runs", headers=bearer(locked[Role.VIEWER]))).status_code == 200


def test_attempts_are_counted_by_address_and_forgotten() -> None:
    attempts = Attempts(most=2, within_s=10.0, addresses=2)
    attempts.fail("a", 0.0)
    assert attempts.wait_s("a", 1.0) == 0.0
    attempts.fail("a", 4.0)
    assert attempts.wait_s("a", 5.0) == 5.0 and attempts.wait_s("b", 5.0) == 0.0
    assert attempts.wait_s("a", 10.0) == 0.0
    for address in ("b", "c"):
        attempts.fail(address, 11.0)
        attempts.fail(address, 11.0)
    assert attempts.wait_s("a", 11.0) == 0.0 and attempts.wait_s("c", 11.0) > 0.0


async def test_a_service_that_others_reach_needs_an_admins_token_first(settings: Settings) -> None:
    outside = replace(settings, host="0.0.0.0")
    where = f"--dir {settings.directory}" if settings.database_url is None else "--database URL"
    with pytest.raises(SettingsError, match=rf"phoenix tokens create NAME --role admin {where}.*--host 127\.0\.0\.1"):
        Service(outside)
    service = Service(settings)
    made(service, Role.ADMIN)
    service.close()
    service = Service(outside)
    with service.database.read() as session:
        assert service.gate.required(session)
    service.close()


async def test_a_proxy_hands_on_by_the_names_it_was_given(settings: Settings) -> None:
    behind = replace(settings, also_named=frozenset({"phoenix.example"}))
    with pytest.raises(SettingsError, match=r"called phoenix\.example .*phoenix tokens create .*serve without --name"):
        Service(behind)
    async with harness(settings) as api:
        token = made(api.service, Role.ADMIN)
    async with harness(behind) as api:
        for host, status in (("phoenix.example", 200), ("127.0.0.1:8642", 200), ("evil.example", 403)):
            answer = await api.client.get("/api/v1/runs", headers={"host": host, **bearer(token)})
            assert answer.status_code == status, host
        problem(await api.client.get("/api/v1/runs", headers={"host": "phoenix.example"}), 401)


@pytest.mark.parametrize(("names", "seen"), [(frozenset(), "127.0.0.1"), (frozenset({"phoenix.example"}), "9.9.9.9")])
async def test_only_a_proxy_that_was_named_says_who_calls(settings: Settings, names: frozenset[str], seen: str) -> None:
    callers = []

    async def site(scope: Scope, receive: Receive, send: Send) -> None:
        callers.append((scope["client"][0], scope["scheme"]))
        await Response()(scope, receive, send)

    config = uvicorn_config(site, replace(settings, also_named=names))
    config.load()
    transport = httpx.ASGITransport(app=config.loaded_app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        await client.get("/", headers={"x-forwarded-for": "9.9.9.9", "x-forwarded-proto": "https"})
    assert callers == [(seen, "https" if names else "http")]


async def test_answers_are_data_to_a_browser(api: Harness) -> None:
    answer = await api.client.get("/api/v1/runs")
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert (
        answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "private, no-cache"
    )
    missing = await api.client.get("/api/v1/runs/nix")
    assert missing.headers["cache-control"] == "no-store" and "etag" not in missing.headers
