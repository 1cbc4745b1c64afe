"""Bodies of requests: what is no JSON, is missing or too large is refused in words, and is not kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from service.guard import MOST_BYTES
from tests.service.helpers import TINY, Harness, Json, problem

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_json_must_say_that_it_is_json(api: Harness, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = await api.client.post("/api/v1/runs", content=b'{"scenario_name":"demo"}', headers=headers)
    detail = problem(answer, 415)["detail"]
    assert "Content-Type: application/json" in detail and (kind or "missing") in detail


async def test_a_charset_may_be_named(api: Harness) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    body = json.dumps({"scenario": TINY}).encode()
    assert (await api.client.post("/api/v1/runs", content=body, headers=headers)).status_code == 202


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{", "line 1, column 2"),
        (b'{"scenario_name":\n "demo",\n}', "line 3, column 1"),
        (b"nonsense", "line 1, column 1"),
    ],
)
async def test_malformed_json_is_pointed_at(api: Harness, body: bytes, where: str) -> None:
    document = problem(await api.client.post("/api/v1/runs", content=body, headers=JSON), 422)
    (error,) = document["errors"]
    assert error["field"] == "body" and f"not valid JSON at {where}: " in error["message"]


@pytest.mark.parametrize(("body", "says"), [(None, "is missing: send a JSON object"), (b"5", "must be a JSON object")])
async def test_a_body_must_be_there_and_be_an_object(api: Harness, body: bytes | None, says: str) -> None:
    document = problem(await api.client.post("/api/v1/runs", content=body, headers=JSON if body else {}), 422)
    assert document["errors"] == [{"field": "body", "message": says}]


async def test_a_cancel_needs_no_body(api: Harness) -> None:
    run = await api.submit()
    answer = await api.client.post(f"/api/v1/runs/{run['id']}/cancel")
    assert answer.status_code == 202 and answer.json()["state"] == "CANCELLED"


async def test_a_body_that_announces_too_much_is_refused_unread(api: Harness) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    headers = {**JSON, "content-length": str(MOST_BYTES + 1)}
    answer = await api.client.post("/api/v1/runs", content=never(), headers=headers)
    assert f"at most {MOST_BYTES} bytes" in problem(answer, 413)["detail"]


async def test_a_body_without_a_length_is_cut_off_while_it_comes(api: Harness) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 100_000
            yield b" " * 100_000

    answer = await api.client.post("/api/v1/runs", content=endless(), headers=JSON)
    assert f"at most {MOST_BYTES} bytes" in problem(answer, 413)["detail"]
    assert sent <= MOST_BYTES + 200_000


async def test_a_number_of_too_many_digits_is_an_error_of_the_caller(api: Harness) -> None:
    body = b'{"scenario_name": "demo", "seed": ' + b"9" * 5000 + b"}"
    detail = problem(await api.client.post("/api/v1/runs", content=body, headers=JSON), 422)["detail"]
    assert detail == "a number in the body has more than the 4300 digits that can be read"


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/tokens", {"name": "a\u2028b"}, "name: is shown in one line: leave out"),
        ("/annotations", {"text": "x", "at": "0001-01-01T00:00:00Z"}, "at: lies before the first or after"),
        ("/webhooks", {"url": "ftp://x/"}, "url: is no address: it begins with http://"),
        ("/runs", {"scenario_name": "demo", "revision": "--all"}, "revision: names no revision: give a commit"),
    ],
)
async def test_what_is_wrong_with_a_text_is_said_in_words(api: Harness, path: str, body: Json, says: str) -> None:
    assert problem(await api.post(path, body), 422)["detail"].startswith(says)


@pytest.mark.parametrize("depth", [500, 900, 100_000])
async def test_a_body_that_is_nested_deeply_is_an_error_of_the_caller(api: Harness, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    body = f'{{"scenario": {{"name": "x", "workload": "gpt-tiny", "steps": 3, "options": {{"data": {nested}}}}}}}'
    answer = await api.client.post("/api/v1/runs", content=body.encode(), headers=JSON)
    problem(answer, 422)


async def test_a_body_that_is_no_utf_8_is_an_error_of_the_caller(api: Harness) -> None:
    answer = await api.client.post("/api/v1/runs", content=b'{"scenario_name": "\xff"}', headers=JSON)
    assert "not UTF-8" in problem(answer, 422)["detail"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"text": "\xed\xa0\x80"}', "not UTF-8"),  # half of a surrogate pair as it is
        ('{"text": "plain"}'.encode("utf-16"), "not UTF-8"),
        (b'\xef\xbb\xbf{"text": "\\u0000"}', "NUL character"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
async def test_what_is_no_text_that_can_be_kept_is_refused_in_any_spelling(
    api: Harness, body: bytes, says: str
) -> None:
    answer = await api.client.post("/api/v1/annotations", content=body, headers=JSON)
    assert says in problem(answer, 422)["detail"]
    assert (await api.client.get("/api/v1/annotations")).json()["items"] == []


async def test_options_of_a_scenario_with_half_a_surrogate_pair_are_an_error_of_the_caller(api: Harness) -> None:
    body = json.dumps({"scenario": {**TINY, "options": {"XX": 1}}}).encode().replace(b"XX", b"\xed\xa0\x80")
    assert "not UTF-8" in problem(await api.client.post("/api/v1/runs", content=body, headers=JSON), 422)["detail"]
