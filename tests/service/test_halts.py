"""Taking faults back: one of them, or all at once until somebody says that it may go on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from service import store
from service.control_tables import AuditRow, Halt
from tests.service.helpers import TINY, Harness, Json, Script, problem

STOP: Json = {"kind": "process_stop", "target": {"rank": 1}, "params": {"ttl_s": 30}}


async def running(api: Harness) -> tuple[str, Script]:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0)
    script.close()
    api.tick()
    return str(run["id"]), script


async def stopped(api: Harness) -> tuple[str, str, Script]:
    """A run in which rank 1 is frozen, and the fault."""
    run, script = await running(api)
    fault = (await api.post(f"/runs/{run}/faults", STOP)).json()["id"]
    script.emit(
        "injector", "fault_injected", worker="w1", rank=1, fault=fault, kind="process_stop", pid=4_000_001,
        fidelity="real", trigger={"now": True},
    )  # fmt: skip
    script.close()
    api.tick()
    return run, fault, script


def requests(directory: Path) -> str:
    file = directory / "requests.jsonl"
    return file.read_text() if file.exists() else ""


async def actions(api: Harness) -> list[tuple[str, str, str | None]]:
    return [(row["actor"], row["action"], row["reason"]) for row in (await api.get("/audit"))["items"]]


# --- one fault -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_run", [True, False])
async def test_a_lasting_fault_is_reverted_on_request(api: Harness, by_run: bool) -> None:
    run, fault, script = await stopped(api)
    path = f"/runs/{run}/faults/{fault}/revert" if by_run else f"/injections/{fault}/revert"
    answer = await api.post(path, {"reason": "seen enough"})
    assert answer.status_code == 202 and answer.json()["revert_requested"] and answer.json()["state"] == "INJECTED"
    assert f'{{"revert":"{fault}","reason":"seen enough"}}' in requests(script.directory)
    api.tick()
    assert requests(script.directory).count('"revert"') == 1
    script.emit("injector", "fault_reverted", worker="w1", rank=1, fault=fault, kind="process_stop", alive=True)
    script.close()
    api.tick()
    (seen,) = (await api.get(f"/runs/{run}/faults"))["items"]
    assert seen["state"] == "REVERTED" and seen["ttl_s"] == 30
    assert seen["reverted_at_s"] > seen["injected_at_s"] and seen["expires_at_s"] == seen["injected_at_s"] + 30
    assert "nothing to revert" in problem(await api.post(path, {}), 409)["detail"]
    assert ("local", "fault.revert", "seen enough") in await actions(api)


async def test_a_revert_that_is_sent_again_after_the_run_has_the_same_answer(api: Harness) -> None:
    run, fault, script = await stopped(api)
    path, key = f"/injections/{fault}/revert", {"Idempotency-Key": "once"}
    first = await api.post(path, {"reason": "seen enough"}, **key)
    script.result()
    script.close()
    (script.directory / "end").touch()
    await api.until_ended(run)
    again = await api.post(path, {"reason": "seen enough"}, **key)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    problem(await api.post(path, {"reason": "seen enough"}), 409)


async def test_there_must_be_something_to_revert(api: Harness) -> None:
    run, script = await running(api)
    kill = (await api.post(f"/runs/{run}/faults", {"kind": "process_kill", "target": {"rank": 1}})).json()["id"]
    path = f"/runs/{run}/faults/{kill}/revert"
    assert "not begun" in problem(await api.client.post(f"/api/v1{path}"), 409)["detail"]
    script.kill_rank_1(kill, step=1)
    script.close()
    api.tick()
    assert "does not last" in problem(await api.post(path, {}), 409)["detail"]
    problem(await api.post(f"/runs/{run}/faults/nix/revert", {}), 404)
    problem(await api.post("/injections/nix/revert", {}), 404)
    assert '"revert"' not in requests(script.directory)


# --- all of them -----------------------------------------------------------------------------------------------------


async def test_a_halt_takes_back_refuses_and_holds_until_it_is_released(api: Harness) -> None:
    run, fault, script = await stopped(api)
    waiting = await api.submit()
    would = (await api.post("/halts", {"reason": "smoke", "dry_run": True})).json()["would"]
    assert would["runs"] == [run] and [hit["fault"] for hit in would["reverts"]] == [fault] and not would["withdraws"]
    assert requests(script.directory).count("\n") == 1 and (await api.get("/halts"))["items"] == []

    answer = await api.post("/halts", {"reason": "smoke"})
    halt = answer.json()
    assert answer.status_code == 201 and halt["active"] and halt["by"] == "local" and halt["reverts"] == 1
    assert f'{{"halt":"{halt["id"]}","reason":"smoke"}}' in requests(script.directory)
    assert f'{{"revert":"{fault}","reason":"halt: smoke"}}' in requests(script.directory)
    again = await api.post("/halts", {"reason": "smoke!"})
    assert again.status_code == 200 and again.json()["id"] == halt["id"]

    refused = problem(await api.post(f"/runs/{run}/faults", STOP), 409)
    assert refused["type"].endswith(":halted") and "smoke" in refused["detail"] and refused["halt"] == halt["id"]
    (script.directory / "end").touch()
    script.result()
    await api.until_ended(run)
    api.tick()
    assert (await api.get(f"/runs/{waiting['id']}"))["state"] == "QUEUED", "nothing starts during a halt"

    problem(await api.post(f"/halts/{halt['id']}/release", {"reason": ""}), 422)
    released = (await api.post(f"/halts/{halt['id']}/release", {"reason": "smoke is gone"})).json()
    assert not released["active"] and released["release_reason"] == "smoke is gone"
    problem(await api.post(f"/halts/{halt['id']}/release", {"reason": "again"}), 409)
    api.tick()
    assert (await api.get(f"/runs/{waiting['id']}"))["state"] == "RUNNING"
    said = await actions(api)
    assert ("local", "halt", "smoke") in said and ("local", "halt.again", "smoke!") in said
    assert ("local", "halt.release", "smoke is gone") in said


async def test_a_running_trial_hears_of_a_halt_and_of_its_end_once(api: Harness) -> None:
    _, script = await running(api)
    halt = (await api.post("/halts", {"reason": "why not"})).json()["id"]
    api.tick()
    await api.post(f"/halts/{halt}/release", {"reason": "enough"})
    api.tick()
    assert requests(script.directory).splitlines() == [
        f'{{"halt":"{halt}","reason":"why not"}}',
        f'{{"release":"{halt}","reason":"enough"}}',
    ]


async def test_a_halt_with_a_time_to_live_ends_by_itself(api: Harness) -> None:
    _, script = await running(api)
    halt = (await api.post("/halts", {"reason": "a moment", "ttl_s": 60})).json()
    with api.service.database.write() as session:
        session.get_one(Halt, halt["id"]).until = store.now() - timedelta(seconds=1)
    assert not (await api.get(f"/halts/{halt['id']}"))["active"]
    api.tick()
    over = await api.get(f"/halts/{halt['id']}")
    assert over["released_by"] == "service" and "time to live" in over["release_reason"]
    api.tick()
    assert f'"release":"{halt["id"]}"' in requests(script.directory)


async def test_a_halt_needs_a_reason(api: Harness) -> None:
    problem(await api.post("/halts", {}), 422)
    problem(await api.post("/halts", {"reason": "x", "ttl_s": 0}), 422)
    problem(await api.post("/halts", {"reason": " \n"}), 422)
    problem(await api.client.get("/api/v1/halts/nix"), 404)


async def test_every_change_is_in_the_audit_log(api: Harness) -> None:
    run = (await api.post("/runs", {"scenario": TINY, "reason": "nightly"})).json()
    assert run["requested_by"] == "local" and run["reason"] == "nightly"
    key = {"Idempotency-Key": "k"}
    for _ in range(2):
        await api.post(f"/runs/{run['id']}/cancel", {"reason": "a mistake"}, **key)
    assert await actions(api) == [("local", "run.cancel", "a mistake"), ("local", "run.submit", "nightly")]
    page = await api.get("/audit", limit=1)
    rest = await api.get("/audit", limit=1, cursor=page["next"])
    assert [page["items"][0]["action"], rest["items"][0]["action"]] == ["run.cancel", "run.submit"]
    assert [row["target"] for row in (await api.get("/audit", action="run.submit"))["items"]] == [run["id"]]
    assert (await api.get("/audit", target="nix"))["items"] == []
    schedule = {"name": "n", "kind": "cron", "cron": "@daily", "run": {"scenario": TINY}}
    made = (await api.post("/schedules", {**schedule, "reason": "each night"})).json()
    await api.post(f"/schedules/{made['id']}/run", {"reason": "to see it"})
    await api.post("/webhooks", {"url": "http://127.0.0.1:9/", "reason": "for the chat"})
    await api.post("/tokens", {"name": "ada", "role": "admin", "reason": "she asked for it"})
    with api.service.database.read() as session:
        newest = session.scalars(select(AuditRow).order_by(AuditRow.seq.desc()).limit(4)).all()
    assert [(row.action, row.reason) for row in newest] == [
        ("token.create", "she asked for it"),
        ("webhook.create", "for the chat"),
        ("schedule.fire", "to see it"),
        ("schedule.create", "each night"),
    ]


async def test_fault_kinds_say_what_this_host_can_do(api: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.service.host, "trouble", lambda kind: "no netem" if kind == "network_delay" else "")
    kinds = {kind["kind"]: kind for kind in (await api.get("/fault-kinds"))["items"]}
    assert kinds["process_kill"]["supported"] and kinds["process_kill"]["unsupported_reason"] is None
    assert not kinds["network_delay"]["supported"] and kinds["network_delay"]["unsupported_reason"] == "no netem"
