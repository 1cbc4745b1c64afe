"""The fake service of these tests answers in the shapes of the real one: else they would prove nothing of the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from service.app import create_app
from service.settings import Settings
from tests.browser import fake_service
from tests.browser.fake_api import FakeApi

# (what the fake is asked, the path as the real service describes it)
ANSWERS = (
    ("/runs", "/runs"),
    ("/runs/r3", "/runs/{run_id}"),
    ("/runs/r3/workers", "/runs/{run_id}/workers"),
    ("/runs/r3/faults", "/runs/{run_id}/faults"),
    ("/runs/r3/trials", "/runs/{run_id}/trials"),
    ("/runs/r3/steps", "/runs/{run_id}/steps"),
    ("/trials/t-r1", "/trials/{trial_id}"),
    ("/trials/t-r1/timeline", "/trials/{trial_id}/timeline"),
    ("/trials/t-r1/baseline", "/trials/{trial_id}/baseline"),
    ("/fault-kinds", "/fault-kinds"),
    ("/suites", "/suites"),
    ("/session", "/session"),
    ("/halts", "/halts"),
    ("/queue", "/queue"),
    ("/services", "/services"),
    ("/schedules", "/schedules"),
    ("/schedules/sch-1/firings", "/schedules/{schedule_id}/firings"),
    ("/webhooks", "/webhooks"),
    ("/webhooks/wh-1/deliveries", "/webhooks/{webhook_id}/deliveries"),
    ("/tokens", "/tokens"),
    ("/annotations", "/annotations"),
    ("/audit", "/audit"),
    ("/triage", "/triage"),
    ("/history/series", "/history/series"),
    ("/history?scenario=stop-one&metric=recovery", "/history"),
    ("/peers", "/peers"),
    ("/comparisons?base=aaaaaaa&head=bbbbbbb", "/comparisons"),
)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory: Path = tmp_path_factory.mktemp("service")
    return create_app(Settings(directory=directory), follow=False).openapi()


@pytest.mark.parametrize(("path", "template"), ANSWERS, ids=[template for _, template in ANSWERS])
async def test_the_fake_answers_as_the_service_would(described: dict[str, Any], path: str, template: str) -> None:
    api = FakeApi()
    api.lists["halts"] = [fake_service.halt()]
    api.lists["triage"] = [fake_service.triage("resolved")]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://service") as client:
        answer = (await client.get("/api/v1" + path)).json()
    operation = described["paths"]["/api/v1" + template]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": described["components"]})
    assert [f"{error.json_path}: {error.message[:160]}" for error in validator.iter_errors(answer)] == []
