"""Lists page by page, all in the same way."""

from __future__ import annotations

from typing import Any

import pytest

from service.app import create_app
from service.settings import Settings
from tests.service.helpers import TINY, Harness, problem

AT = "2026-11-01T02:00:00Z"


def test_whatever_has_pages_is_asked_for_them_in_the_same_way(settings: Settings) -> None:
    document = create_app(settings, follow=False).openapi()
    paged = []
    for path, operations in document["paths"].items():
        answer = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        name = answer.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        fields = document["components"]["schemas"].get(name, {}).get("properties", {})
        # Steps and events go on from a step and an offset, which mean something by themselves.
        if "next" in fields and not path.endswith(("/steps", "/events")):
            paged.append(path)
            asked = {given["name"] for given in operations["get"]["parameters"]}
            assert {"limit", "cursor"} <= asked, path
    assert len(paged) == 13, paged


async def fill(api: Harness) -> None:
    for number in range(5):
        note = {"text": str(number), "at": AT if number < 4 else "2026-11-02T02:00:00Z"}
        assert (await api.post("/annotations", note)).status_code == 201
        cron = {"name": f"every {number}", "kind": "cron", "cron": "@daily", "run": {"scenario": TINY}}
        assert (await api.post("/schedules", cron)).status_code == 201
        assert (await api.post("/webhooks", {"url": f"http://127.0.0.1:9/{number}"})).status_code == 201
        halt = (await api.post("/halts", {"reason": "to see it"})).json()
        assert (await api.post(f"/halts/{halt['id']}/release", {"reason": "seen"})).status_code == 200
        await api.submit()


async def pages_of(api: Harness, path: str, limit: int) -> list[list[dict[str, Any]]]:
    pages: list[list[dict[str, Any]]] = []
    cursor: dict[str, str] = {}
    while cursor or not pages:
        page = await api.get(path, limit=limit, **cursor)
        pages.append(page["items"])
        cursor = {} if page["next"] is None else {"cursor": page["next"]}
    return pages


@pytest.mark.both_databases
async def test_page_after_page_shows_everything_once(api: Harness) -> None:
    await fill(api)
    for path in ("/annotations", "/schedules", "/webhooks", "/halts", "/runs", "/trials", "/audit", "/services"):
        whole = (await api.get(path))["items"]
        pages = await pages_of(api, path, 2)
        assert [item for page in pages for item in page] == whole, path
        assert all(len(page) == 2 for page in pages[:-1]) and pages[-1], path
    assert (await api.get("/halts", active="true"))["items"] == []


async def test_a_row_that_goes_meanwhile_moves_no_other(api: Harness) -> None:
    await fill(api)
    whole = (await api.get("/annotations"))["items"]
    first = await api.get("/annotations", limit=2)
    for gone in first["items"]:
        assert (await api.client.delete(f"/api/v1/annotations/{gone['id']}")).status_code == 204
    assert (await api.get("/annotations", limit=2, cursor=first["next"]))["items"] == whole[2:4]


@pytest.mark.parametrize("cursor", ["x", "1", "9" * 30, "2026-11-01T02:00:00", "0001-01-01T00:00:00+14:00 note"])
async def test_a_cursor_that_no_page_told_is_refused(api: Harness, cursor: str) -> None:
    answer = await api.client.get("/api/v1/annotations", params={"cursor": cursor})
    assert "is `next` of no page of this list" in problem(answer, 422)["detail"]
