"""What watches the service: health, metrics, the queue, ETags, and the page of its documentation."""

from __future__ import annotations

from service import tokens
from service.callers import LOCAL, Role
from tests.service.helpers import Harness, problem


async def test_metrics_tell_of_answers_and_of_the_database(api: Harness) -> None:
    run = await api.submit()
    await api.get(f"/runs/{run['id']}")
    problem(await api.client.get("/api/v1/runs/nix"), 404)
    answer = await api.client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    route = 'method="GET",route="/runs/{run_id}"'
    assert f'phoenix_http_requests_total{{{route},status="200"}} 1.0' in lines
    assert f'phoenix_http_requests_total{{{route},status="404"}} 1.0' in lines
    for line in (
        'phoenix_runs{state="QUEUED"} 1.0',
        'phoenix_queue{state="QUEUED"} 1.0',
        "phoenix_services_alive 1.0",
        "phoenix_halted 0.0",
        "phoenix_faults_active 0.0",
        "phoenix_schedules_stale 0.0",
    ):
        assert line in lines, line
    assert run["id"] not in answer.text, "a path in a label would be as many labels as runs"


async def test_metrics_need_a_token_where_everything_does(api: Harness) -> None:
    with api.service.database.write() as session:
        tokens.create(session, LOCAL, "admin", Role.ADMIN, None)
        viewer = tokens.create(session, LOCAL, "prometheus", Role.VIEWER, None)[1]
    problem(await api.client.get("/metrics"), 401)
    assert (await api.client.get("/metrics", headers={"authorization": f"Bearer {viewer}"})).status_code == 200


async def test_the_queue_and_who_works_on_it(api: Harness) -> None:
    await api.started()
    await api.submit()
    halt = (await api.post("/halts", {"reason": "x"})).json()["id"]
    assert await api.get("/queue") == {"queued": 1, "running": 1, "halted": halt}
    (service,) = (await api.get("/services"))["items"]
    assert service["alive"] and len(service["trials"]) == 1 and service["trouble"] is None
    assert service["id"] == api.service.executor.service


async def test_whoever_has_an_answer_already_gets_none(api: Harness) -> None:
    run = await api.submit()
    path = f"/api/v1/runs/{run['id']}"
    first = await api.client.get(path)
    tag = first.headers["etag"]
    for known in (tag, f'"x", {tag}', tag.removeprefix("W/")):
        again = await api.client.get(path, headers={"if-none-match": known})
        assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == tag
    await api.post(f"/runs/{run['id']}/cancel", {})
    changed = await api.client.get(path, headers={"if-none-match": tag})
    assert changed.status_code == 200 and changed.headers["etag"] != tag and changed.json()["state"] == "CANCELLED"
    assert (await api.client.head(path)).status_code in (200, 405)


async def test_the_documentation_loads_nothing_from_outside(api: Harness) -> None:
    page = await api.client.get("/docs")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    for name in ("swagger-ui.css", "swagger-ui-bundle.js", "docs.js"):
        assert f"/docs/{name}" in page.text
        file = await api.client.get(f"/docs/{name}")
        assert file.status_code == 200 and file.content
    assert "http" not in page.text.replace("http-equiv", "")
    problem(await api.client.get("/docs/redoc.standalone.js"), 404)
    problem(await api.client.get("/docs/..%2f..%2fsettings.py"), 404)
    schemes = (await api.client.get("/openapi.json")).json()["components"]["securitySchemes"]
    assert set(schemes) == {"token", "session"}
