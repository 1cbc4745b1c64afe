"""Schedules: when they are due, that each instant fires once, and what is told of it."""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from service import store
from service.clockwork import Clockwork
from service.commands.schedules import coming, listed
from service.control_tables import Delivery, Firing, Schedule
from service.timing import InvalidTiming, Kind, Timing
from tests.service.helpers import TINY, Harness, Json, Script, problem

NIGHTLY: Json = {"name": "nightly", "kind": "cron", "cron": "0 2 * * *", "run": {"scenario": TINY}}


def instants(timing: Timing, start: str, count: int) -> list[str]:
    """UTC, and the hour on the wall there."""
    moment: datetime | None = datetime.fromisoformat(start).replace(tzinfo=UTC)
    found = []
    for _ in range(count):
        assert moment is not None
        moment = timing.next_after(moment)
        assert moment is not None
        found.append(f"{moment:%m-%d %H:%M}")
    return found


# --- when ------------------------------------------------------------------------------------------------------------


def test_sunday_is_sunday() -> None:
    for day in ("0", "7", "sun"):
        moment = Timing(kind=Kind.CRON, cron=f"0 2 * * {day}").next_after(datetime(2026, 11, 30, tzinfo=UTC))
        assert moment is not None and f"{moment:%A %H:%M}" == "Sunday 02:00"


def test_summer_time_skips_no_night_and_repeats_hours_of_every_hour_only() -> None:
    berlin = Timing(kind=Kind.CRON, cron="30 2 * * *", timezone="Europe/Berlin")
    assert instants(berlin, "2026-03-27T12:00", 3) == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    assert instants(berlin, "2026-10-24T12:00", 3) == ["10-25 00:30", "10-26 01:30", "10-27 01:30"]
    assert instants(berlin, "2026-10-25T01:00", 1) == ["10-26 01:30"], "asked in the second of the two hours"
    for cron in ("30 * * * *", "30 */1 * * *"):
        hourly = Timing(kind=Kind.CRON, cron=cron, timezone="Europe/Berlin")
        assert instants(hourly, "2026-10-25T00:00", 3) == ["10-25 00:30", "10-25 01:30", "10-25 02:30"]
    utc = Timing(kind=Kind.CRON, cron="30 2 * * *")
    assert instants(utc, "2026-10-24T12:00", 3) == ["10-25 02:30", "10-26 02:30", "10-27 02:30"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": Kind.CRON, "cron": "0 0 30 2 *"}, "cron"),
        ({"kind": Kind.CRON, "cron": "* * * *"}, "cron"),
        ({"kind": Kind.CRON, "cron": "61 * * * *"}, "cron"),
        ({"kind": Kind.CRON, "cron": "R R * * *"}, "cron"),
        ({"kind": Kind.CRON, "cron": "0 r * * *"}, "cron"),
        ({"kind": Kind.CRON, "cron": "0,h(0-5) 2 * * *"}, "cron"),
        ({"kind": Kind.CRON, "cron": "*/100 * * * *"}, "cron"),
        ({"kind": Kind.CRON, "cron": "0 0-23/25 * * *"}, "cron"),
        ({"kind": Kind.CRON, "cron": ""}, "cron"),
        ({"kind": Kind.CRON}, "cron"),
        ({"kind": Kind.CRON, "cron": "@daily", "every_s": 10.0}, "every_s"),
        ({"kind": Kind.INTERVAL}, "every_s"),
        ({"kind": Kind.CRON, "cron": "@daily", "timezone": "Mars/Olympus"}, "timezone"),
        ({"kind": Kind.CRON, "cron": "@daily", "timezone": "../../etc/passwd"}, "timezone"),
    ],
)
def test_timings_that_can_never_be_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTiming) as refusal:
        Timing(**values)
    assert refusal.value.field == field


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "30 * * * *", "0 3 * * *", "0 0 1 * *"])
@pytest.mark.parametrize("timezone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Havana"])
@pytest.mark.parametrize("change", ["2027-03-28", "2027-10-31", "2027-04-04", "2027-10-03", "2027-11-07", "2027-03-14"])
def test_what_is_overdue_when_clocks_change_is_what_was_due_last(cron: str, timezone: str, change: str) -> None:
    timing = Timing(kind=Kind.CRON, cron=cron, timezone=timezone)
    begin = datetime.fromisoformat(change).replace(tzinfo=UTC) - timedelta(hours=14)
    first = timing.next_after(begin)
    assert first is not None
    passed, now = [first], first
    while now < first + timedelta(hours=40):
        now += timedelta(minutes=47)
        while (following := timing.next_after(passed[-1])) is not None and following <= now:
            passed.append(following)
        assert timing.due(first, now) == (passed[-1], int(len(passed) > 1), following)


def test_what_was_due_while_nobody_looked_is_one_instant() -> None:
    first = datetime(2026, 11, 1, 2, tzinfo=UTC)
    now = datetime(2026, 11, 30, 3, tzinfo=UTC)
    nightly = Timing(kind=Kind.CRON, cron="0 2 * * *")
    last, earlier, following = nightly.due(first, now)
    assert (last.day, earlier, following) == (30, 1, datetime(2026, 12, 1, 2, tzinfo=UTC))
    assert nightly.due(first, first) == (first, 0, first + timedelta(days=1))
    hourly = Timing(kind=Kind.INTERVAL, every_s=3600.0)
    assert hourly.due(first, first + timedelta(hours=2.5)) == (
        first + timedelta(hours=2),
        2,
        first + timedelta(hours=3),
    )
    once = Timing(kind=Kind.ONCE, at=first)
    assert once.due(first, now) == (first, 0, None)


# --- firing ----------------------------------------------------------------------------------------------------------


async def made(api: Harness, **changes: Any) -> Json:
    answer = await api.post("/schedules", {**NIGHTLY, **changes})
    assert answer.status_code == 201, answer.text
    schedule: Json = answer.json()
    return schedule


def make_due(api: Harness, schedule: str, late_s: float = 1.0) -> None:
    with api.service.database.write() as session:
        session.get_one(Schedule, schedule).next_due = store.now() - timedelta(seconds=late_s)


async def firings(api: Harness, schedule: str) -> list[Json]:
    items: list[Json] = (await api.get(f"/schedules/{schedule}/firings"))["items"]
    return items


async def test_a_schedule_says_when_it_is_due_on_both_clocks(api: Harness) -> None:
    schedule = await made(api, timezone="Asia/Tokyo")
    assert schedule["next_due"].endswith("T17:00:00Z") and schedule["next_due_local"].endswith("02:00:00 JST")
    assert schedule["run"]["scenario"]["name"] == "tiny" and schedule["created_by"] == "local"
    assert (await api.get("/schedules"))["items"] == [schedule]
    asked = {"kind": "cron", "cron": "0 2 * * *", "timezone": "Asia/Tokyo", "count": 2}
    shown = (await api.post("/schedules/preview", asked)).json()["items"]
    assert shown[0] == {"utc": schedule["next_due"], "local": schedule["next_due_local"]} and len(shown) == 2


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"cron": "0 0 30 2 *"}, 422),
        ({"timezone": "Mars"}, 422),
        ({"kind": "once", "cron": None, "at": "2020-01-01T00:00:00Z"}, 422),
        ({"kind": "interval", "cron": None, "every_s": 1}, 422),
        ({"run": {"scenario_name": "nix"}}, 404),
        ({"run": {"scenario": {**TINY, "options": {"data": "/etc/passwd"}}}}, 422),
        ({"webhook": "nix"}, 422),
        ({"overlap": "sometimes"}, 422),
        ({"misfire_grace_s": 0}, 422),  # every instant is noticed a moment later, so that none would ever start
        ({"name": "  "}, 422),
        ({"base": "--output=x"}, 422),
        # On a clock east of Greenwich this is in the year 10000.
        ({"kind": "once", "cron": None, "at": "9999-12-31T23:00:00Z", "timezone": "Asia/Tokyo"}, 422),
    ],
)
async def test_schedules_that_cannot_be_are_refused(api: Harness, change: Json, status: int) -> None:
    problem(await api.post("/schedules", {**NIGHTLY, **change}), status)
    assert (await api.get("/schedules"))["items"] == []


async def test_an_instant_fires_once_however_many_look(api: Harness) -> None:
    schedule = await made(api)
    make_due(api, schedule["id"])
    service = api.service
    for clockwork in (service.clockwork, Clockwork(service.settings, service.database), service.clockwork):
        clockwork.tick()
    (run,) = (await api.get("/runs"))["items"]
    assert run["schedule"] == schedule["id"] and run["requested_by"] == "service" and "nightly" in run["reason"]
    (firing,) = await firings(api, schedule["id"])
    assert (firing["outcome"], firing["run"], firing["verdict"]) == ("started", run["id"], None)
    now = await api.get(f"/schedules/{schedule['id']}")
    assert now["next_due"] == schedule["next_due"] and now["last"] == firing
    assert (await api.get("/runs", schedule=schedule["id"]))["items"] == [run]


@pytest.mark.parametrize(("overlap", "outcomes"), [("skip", ["skipped"]), ("queue", ["started"])])
async def test_overlap(api: Harness, overlap: str, outcomes: Sequence[str]) -> None:
    schedule = await made(api, overlap=overlap)
    for _ in range(2):
        make_due(api, schedule["id"])
        api.service.clockwork.tick()
    found = [firing["outcome"] for firing in await firings(api, schedule["id"])]
    assert found == [*outcomes, "started"]


async def test_a_new_run_may_take_the_place_of_the_one_before(api: Harness) -> None:
    schedule = await made(api, overlap="cancel_previous")
    for _ in range(2):
        make_due(api, schedule["id"])
        api.service.clockwork.tick()
    assert [run["state"] for run in (await api.get("/runs"))["items"]] == ["QUEUED", "CANCELLED"]


async def test_what_cannot_run_any_more_takes_no_other_place(api: Harness) -> None:
    schedule = await made(api, overlap="cancel_previous")
    make_due(api, schedule["id"])
    api.service.clockwork.tick()
    with api.service.database.write() as session:
        session.get_one(Schedule, schedule["id"]).document = {"scenario_name": "gone"}
    make_due(api, schedule["id"])
    api.service.clockwork.tick()
    assert [firing["outcome"] for firing in await firings(api, schedule["id"])] == ["failed", "started"]
    assert [run["state"] for run in (await api.get("/runs"))["items"]] == ["QUEUED"]


async def test_what_is_noticed_too_late_is_missed(api: Harness) -> None:
    schedule = await made(api, misfire_grace_s=60)
    make_due(api, schedule["id"], late_s=100 * 86_400)
    with api.service.database.write() as session:
        session.get_one(Schedule, schedule["id"]).cron = "0 0 1 1 *"  # the newest instant is long ago, too
    api.service.clockwork.tick()
    (firing,) = await firings(api, schedule["id"])
    assert firing["outcome"] == "missed" and "more than its grace" in firing["detail"]
    assert (await api.get("/runs"))["items"] == []
    assert datetime.fromisoformat((await api.get(f"/schedules/{schedule['id']}"))["next_due"]) > store.now()


async def test_what_cannot_run_any_more_has_failed(api: Harness) -> None:
    schedule = await made(api)
    with api.service.database.write() as session:
        session.get_one(Schedule, schedule["id"]).document = {"scenario_name": "gone"}
    make_due(api, schedule["id"])
    api.service.clockwork.tick()
    (firing,) = await firings(api, schedule["id"])
    assert firing["outcome"] == "failed" and "gone" in firing["detail"]


async def test_one_that_is_refused_by_now_keeps_no_other_waiting(api: Harness) -> None:
    refused, other = await made(api), await made(api, name="other")
    for late_s, schedule in enumerate((other, refused), start=1):
        make_due(api, schedule["id"], late_s)
    with api.service.database.write() as session:
        session.get_one(Schedule, refused["id"]).cron = "r r r r r"
    for _ in range(2):
        api.service.clockwork.tick()
    (firing,) = await firings(api, refused["id"])
    assert firing["outcome"] == "failed" and "drawn by chance" in firing["detail"]
    assert [firing["outcome"] for firing in await firings(api, other["id"])] == ["started"]
    path = f"/schedules/{refused['id']}"
    assert (await api.post(f"{path}/pause", {})).status_code == 200
    assert "drawn by chance" in problem(await api.post(f"{path}/resume", {}), 409)["detail"]
    assert (await api.get(path))["paused"]


async def test_one_whose_only_time_has_passed_is_over(api: Harness) -> None:
    soon = (store.now() + timedelta(hours=1)).isoformat()
    schedule = await made(api, kind="once", cron=None, at=soon)
    path = f"/schedules/{schedule['id']}"
    await api.post(f"{path}/pause", {})
    assert coming(await api.get(path)) == "paused"
    with api.service.database.write() as session:
        session.get_one(Schedule, schedule["id"]).at = store.now() - timedelta(hours=1)
    resumed = (await api.post(f"{path}/resume", {})).json()
    assert not resumed["paused"] and resumed["next_due"] is None
    assert coming(resumed) == "not due again: its time has passed" and "over" in listed([resumed])


async def test_pause_resume_run_now_replace_and_delete(api: Harness) -> None:
    schedule = await made(api)
    path = f"/schedules/{schedule['id']}"
    paused = (await api.post(f"{path}/pause", {"reason": "holidays"})).json()
    assert paused["paused"] and paused["paused_reason"] == "holidays" and paused["next_due"] is None
    answer = await api.post(f"{path}/run", {"reason": "now"})
    assert answer.status_code == 202 and answer.json()["schedule"] == schedule["id"]
    assert "has not ended" in problem(await api.post(f"{path}/run", {}), 409)["detail"]
    resumed = (await api.post(f"{path}/resume", {})).json()
    assert not resumed["paused"] and resumed["next_due"] == schedule["next_due"]
    assert "already" in problem(await api.post("/schedules", NIGHTLY), 409)["detail"]
    changed = await api.client.put(f"/api/v1{path}", json={**NIGHTLY, "cron": "0 3 * * *"}, headers={"If-Match": "*"})
    assert changed.json()["cron"] == "0 3 * * *" and changed.json()["id"] == schedule["id"]
    assert (await api.client.delete(f"/api/v1{path}")).status_code == 204
    problem(await api.client.get(f"/api/v1{path}"), 404)
    assert len((await api.get("/runs"))["items"]) == 1


# --- afterwards ------------------------------------------------------------------------------------------------------


async def hooked(api: Harness, *events: str) -> str:
    answer = await api.post("/webhooks", {"url": "http://127.0.0.1:9/", "events": list(events)})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def told(api: Harness) -> list[tuple[str, Json]]:
    import json

    with api.service.database.read() as session:
        rows = session.query(Delivery).order_by(Delivery.created_at).all()
        return [(row.event, json.loads(row.body)["data"]) for row in rows]


async def ended_run(api: Harness, verdict: str = "PASS") -> Json:
    api.tick()
    (run,) = (await api.get("/runs", state="RUNNING"))["items"]
    directory = Path((await api.get(f"/runs/{run['id']}/trials"))["items"][-1]["directory"])
    Script(directory).result(verdict)
    (directory / "end").touch()
    return await api.until_ended(run["id"])


async def test_the_end_of_a_run_is_told_with_its_comparison(api: Harness) -> None:
    hook = await hooked(api)
    schedule = await made(api, webhook=hook, base="previous")
    compared: list[tuple[str, str]] = []

    def compare(base: str, head: str) -> dict[str, object]:
        compared.append((base, head))
        return {"verdict": "stable"}

    clockwork = Clockwork(api.service.settings, api.service.database, compare)
    make_due(api, schedule["id"])
    clockwork.tick()
    first = await ended_run(api)
    clockwork.tick()
    clockwork.tick()
    ((event, message),) = await told(api)
    assert event == "run.ended" and message["run"]["id"] == first["id"] and message["schedule"] == "nightly"
    assert "no earlier run" in message["comparison"]["error"] and compared == []
    make_due(api, schedule["id"])
    clockwork.tick()
    second = await ended_run(api, "FAIL")
    with api.service.database.write() as session:
        earlier, later = (store.find_run(session, run["id"]) for run in (first, second))
        assert earlier is not None and later is not None
        earlier.commit, later.commit = "a" * 40, "b" * 40
    clockwork.tick()
    assert compared == [("a" * 40, "b" * 40)]
    (_, (_, message)) = await told(api)
    assert message["comparison"] == {"verdict": "stable"} and message["run"]["verdict"] == "FAIL"
    with api.service.database.read() as session:
        assert all(row.compared_at for row in session.query(Firing))


async def test_failed_runs_are_told_to_whoever_wants_to_know(api: Harness) -> None:
    await hooked(api, "run.failed")
    await api.submit()
    await ended_run(api)
    await api.submit()
    run = await ended_run(api, "FAIL")
    ((event, message),) = await told(api)
    assert event == "run.failed" and message["run"]["id"] == run["id"]


async def test_a_stale_nightly_is_told_once_until_it_is_well_again(api: Harness) -> None:
    hook = await hooked(api, "schedule.stale")
    schedule = await made(api, webhook=hook, stale_after_s=86_400 * 1.5)
    clockwork = api.service.clockwork
    clockwork.watch()
    assert not (await api.get(f"/schedules/{schedule['id']}"))["stale"] and await told(api) == []
    with api.service.database.write() as session:
        session.get_one(Schedule, schedule["id"]).created_at = store.now() - timedelta(days=2)
    clockwork.watch()
    clockwork.watch()
    ((event, message),) = await told(api)
    assert event == "schedule.stale" and message["name"] == "nightly"
    assert (await api.get(f"/schedules/{schedule['id']}"))["stale"]
    make_due(api, schedule["id"])
    clockwork.tick()
    await ended_run(api)
    clockwork.watch()
    assert not (await api.get(f"/schedules/{schedule['id']}"))["stale"]
    with api.service.database.read() as session:
        assert session.get_one(Schedule, schedule["id"]).stale_told_at is None


# --- changed in place -------------------------------------------------------------------------------------------------


async def test_a_change_in_place_loses_none_in_between(api: Harness) -> None:
    schedule = await made(api)
    path, body = f"/api/v1/schedules/{schedule['id']}", {**NIGHTLY, "cron": "0 3 * * *"}
    seen = (await api.client.get(path)).headers["etag"]
    assert "ETag" in problem(await api.client.put(path, json=body), 428)["detail"]
    changed = await api.client.put(path, json=body, headers={"If-Match": seen})
    assert changed.status_code == 200 and changed.json()["cron"] == "0 3 * * *"
    late = await api.client.put(path, json=NIGHTLY, headers={"If-Match": seen})
    problem(late, 412)
    now = changed.headers["etag"]
    assert now == late.headers["etag"] == (await api.client.get(path)).headers["etag"] != seen
    assert (await api.client.put(path, json=NIGHTLY, headers={"If-Match": f'"x", {now}'})).json()["cron"] == "0 2 * * *"
    assert (await api.client.put(path, json=body, headers={"If-Match": "*"})).status_code == 200
    problem(await api.client.put(f"{path}x", json=body, headers={"If-Match": "*"}), 404)
    assert len((await api.get("/audit", action="schedule.replace"))["items"]) == 3


def test_time_zones_need_no_files_of_the_system() -> None:
    try:
        zoneinfo.reset_tzpath(to=[])
        zoneinfo.ZoneInfo.clear_cache()
        assert Timing(kind=Kind.CRON, cron="0 2 * * *", timezone="Asia/Tokyo").timezone == "Asia/Tokyo"
    finally:
        zoneinfo.reset_tzpath()
