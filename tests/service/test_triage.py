"""Decisions about regressions: who, what and why, added to and never changed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from chaos.compare.samples import Code
from service import store
from service.control_tables import TriageRow
from service.routes.triage import COUNTED_DAYS
from tests.comparing import sample
from tests.service.helpers import Harness, problem
from tests.service.test_history import fill

CLEAN, DIRTY = "a" * 40, f"{'b' * 40}-d1ffd1ffd1ff"


@pytest.fixture
def measured(api: Harness) -> None:
    commit, _, diff = DIRTY.partition("-")
    fill(api.service.database, sample(0), sample(1, code=Code(commit=commit, diff=diff)))


@pytest.mark.both_databases
@pytest.mark.usefixtures("measured")
async def test_the_last_decision_counts_and_all_of_them_are_told(api: Harness) -> None:
    seen = {"code": CLEAN, "state": "acknowledged", "reason": "bisected", "owner": "eve", "link": "https://b.example/1"}
    first = await api.post("/triage", seen, **{"Idempotency-Key": "k"})
    assert first.status_code == 201 and first.json()["by"] == "local"
    assert (await api.post("/triage", seen, **{"Idempotency-Key": "k"})).json() == first.json()
    for code, state in ((DIRTY, "false_alarm"), (CLEAN, "resolved")):
        assert (await api.post("/triage", {"code": code, "state": state, "reason": "fixed"})).status_code == 201
    found = await api.get("/triage")
    assert [(item["code"], item["state"]) for item in found["items"]] == [(CLEAN, "resolved"), (DIRTY, "false_alarm")]
    assert [one["state"] for one in found["items"][0]["decisions"]] == ["resolved", "acknowledged"]
    assert found["items"][0]["decisions"][1] == first.json()
    assert (found["decided"], found["false_alarms"]) == (2, 1)
    rows = (await api.get("/audit", action="regression.triage"))["items"]
    assert [(row["target"], row["reason"], row["detail"]["state"]) for row in rows[::2]] == [
        (CLEAN, "fixed", "resolved"),
        (CLEAN, "bisected", "acknowledged"),
    ]


@pytest.mark.usefixtures("measured")
async def test_old_decisions_are_not_counted_and_a_regression_can_be_opened_anew(api: Harness) -> None:
    for code in (CLEAN, DIRTY):
        await api.post("/triage", {"code": code, "state": "false_alarm", "reason": "noise"})
    with api.service.database.write() as session:
        old = store.now() - timedelta(days=COUNTED_DAYS + 1)
        session.execute(update(TriageRow).where(TriageRow.code == CLEAN).values(at=old))
    assert (await api.get("/triage"))["decided"] == 1
    await api.post("/triage", {"code": DIRTY, "state": "new", "reason": "it was none"})
    found = await api.get("/triage")
    assert (found["decided"], found["items"][0]["state"]) == (0, "new")


@pytest.mark.usefixtures("measured")
async def test_what_says_nothing_is_refused(api: Harness) -> None:
    whole = {"code": CLEAN, "state": "acknowledged", "reason": "seen"}
    for changes in (
        {"code": CLEAN[:9]}, {"code": "c" * 40}, {"code": "no code"}, {"state": "gone"}, {"reason": " "},
        {"link": "javascript:alert(1)"}, {"owner": "two\nlines"}, {"more": 1},
    ):  # fmt: skip
        problem(await api.post("/triage", {**whole, **changes}), 422)
    assert (await api.get("/triage"))["items"] == []
