"""Every page over the real service: empty, and while a run recovers from a fault that was asked for by REST."""

from __future__ import annotations

import html
from collections.abc import AsyncIterator

import httpx
import pytest

from dashboards.app import create_app
from tests.service.helpers import Harness, Script

VIEWS = (
    "/", "/runs", "/history", "/heatmap", "/compare", "/regressions", "/faults", "/schedules", "/machines", "/settings",
    "/login",
)  # fmt: skip
NIGHTLY = {"name": "nightly", "kind": "cron", "cron": "0 2 * * *", "run": {"suite": "nightly"}, "base": "previous"}


@pytest.fixture
async def pages(api: Harness) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(api.client))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def shown(pages: httpx.AsyncClient, path: str) -> str:
    answer = await pages.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return html.unescape(answer.text)


async def test_every_page_of_an_empty_service_says_how_to_begin(pages: httpx.AsyncClient) -> None:
    for path in VIEWS:
        page = await shown(pages, path)
        assert "<h1" in page
        assert "<pre" in page or path == "/regressions", f"{path}: no command to begin with"


async def test_every_page_of_a_service_at_work(api: Harness, pages: httpx.AsyncClient) -> None:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    for step in range(3):
        script.step(step)
    api.tick()
    asked = {"kind": "process_kill", "target": {"rank": 1}, "trigger": {"now": True}, "reason": "to look at it"}
    fault = (await api.post(f"/runs/{run['id']}/faults", asked)).json()["id"]
    script.kill_rank_1(fault, step=3)
    for step in (3, 4):
        script.step(step, generation=1, workers=("w0", "w2"))
    script.close()
    api.tick()
    assert (await api.post("/schedules", NIGHTLY)).status_code == 201
    assert (await api.post("/annotations", {"text": "a new kernel"})).status_code == 201
    hook = {"url": "http://127.0.0.1:9/hook", "events": ["run.failed"], "description": "the chat"}
    assert (await api.post("/webhooks", hook)).status_code == 201

    for path in VIEWS:
        assert "Halt now" in await shown(pages, path) or path == "/login"
    for path in (f"/runs/{run['id']}", f"/trials/{run['trials'][0]}"):
        page = await shown(pages, path)
        assert "Recovery 1: process_kill" in page and "steps/s" in page and 'class="ph restore"' in page
    assert f'data-post="/api/v1/runs/{run["id"]}/faults"' in await shown(pages, "/faults")
    assert "the run of it before" in await shown(pages, "/schedules")
    settings = await shown(pages, "/settings")
    assert "a new kernel" in settings and "the chat" in settings and "fault.request" in settings
    assert "disturbed run" in await shown(pages, "/")
