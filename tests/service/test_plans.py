"""What a request costs does not grow with the years: each question has its index, and none is asked per row."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.service.helpers import TINY, Harness, statements

# Of these there are few, however long a service has been running.
SMALL = {"services", "schedules", "webhooks", "halts", "tokens", "annotations", "triage"}
RUN = "{run}"
PATHS = (
    "/metrics",
    "/api/v1/queue",
    "/api/v1/services",
    "/api/v1/runs",
    "/api/v1/runs?cursor=100",
    "/api/v1/runs?state=QUEUED&state=RUNNING",
    "/api/v1/runs?verdict=FAIL&scenario=tiny",
    "/api/v1/runs?suite=nightly",
    "/api/v1/runs?schedule=x",
    "/api/v1/runs?workload=nothing",
    "/api/v1/runs?commit=abcdef01",
    "/api/v1/runs?since=2026-11-01T00:00:00Z&until=2026-11-02T00:00:00Z",
    "/api/v1/trials?scenario=nothing",
    "/api/v1/trials?verdict=FAIL&state=FINISHED",
    "/api/v1/trials?commit=abcdef01",
    "/api/v1/audit?actor=nobody",
    "/api/v1/audit?action=nothing",
    "/api/v1/audit?target=nothing",
    "/api/v1/schedules",
    "/api/v1/history?scenario=tiny",
    f"/api/v1/runs/{RUN}",
    f"/api/v1/runs/{RUN}/trials",
    f"/api/v1/runs/{RUN}/faults",
    f"/api/v1/runs/{RUN}/steps",
    f"/api/v1/runs/{RUN}/workers",
    f"/api/v1/runs/{RUN}/events",
    f"/api/v1/trials/{RUN}-1",
    f"/api/v1/trials/{RUN}-1/timeline",
)


async def test_no_question_reads_a_table_from_end_to_end(api: Harness) -> None:
    if api.service.database.postgres:
        pytest.skip("of a table with a few rows PostgreSQL reads all, whatever indexes there are")
    run = (await api.submit())["id"]
    schedule = {"name": "n", "kind": "cron", "cron": "@daily", "run": {"scenario": TINY}, "stale_after_s": 60}
    assert (await api.post("/schedules", schedule)).status_code == 201
    api.tick()
    found = []
    for path in PATHS:
        with statements(api.service.database) as seen:
            answer = await api.client.get(path.format(run=run))
        assert answer.status_code in (200, 404), answer.text
        found += [f"{path}: {line} ({text})" for text, values in seen for line in _scans(api, text, values)]
    assert found == []


def _scans(api: Harness, text: str, values: Any) -> list[str]:
    """Lines of the plan that read a whole table. In its own order and up to a limit it is read from one end only."""
    if not text.startswith("SELECT") or ("LIMIT" in text and "WHERE" not in text):
        return []
    with api.service.database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all()
    scans = (re.fullmatch(r"SCAN (\w+)( USING INDEX .*)?", row[3]) for row in plan)
    return [scan[0] for scan in scans if scan is not None and scan[1] not in SMALL]


async def test_lists_ask_as_often_for_many_as_for_one(api: Harness) -> None:
    counts: dict[str, list[int]] = {}
    for many in (1, 12):
        run = (await api.post("/runs", {"scenario": TINY, "trials": many})).json()["id"]
        for path in ("/metrics", "/api/v1/runs", f"/api/v1/runs/{RUN}", f"/api/v1/runs/{RUN}/trials", "/api/v1/trials"):
            with statements(api.service.database) as seen:
                assert (await api.client.get(path.format(run=run))).status_code == 200
            counts.setdefault(path, []).append(len(seen))
    assert all(one == other for one, other in counts.values()), counts
