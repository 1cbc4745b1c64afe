"""The REST API: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from chaos.cluster.abilities import Abilities
from service.settings import Settings
from tests.service.helpers import TINY, Harness, Json, Script, harness, problem

KILL: Json = {"kind": "process_kill", "target": {"rank": 1}}


# --- runs ------------------------------------------------------------------------------------------------------------


async def test_a_submitted_run_is_queued_and_found(api: Harness) -> None:
    answer = await api.post("/runs", {"scenario": TINY})
    run = answer.json()
    assert answer.status_code == 202 and answer.headers["location"] == f"/api/v1/runs/{run['id']}"
    assert run["state"] == "QUEUED" and run["trials"] == [f"{run['id']}-1"] and run["step"] is None
    assert run["cluster"] == {"nodes": 2, "ranks_per_node": 1, "spares": 1}
    assert await api.get(f"/runs/{run['id']}") == run
    assert run["created_at"].endswith("Z")


async def test_a_run_of_a_shipped_scenario(api: Harness) -> None:
    answer = await api.post("/runs", {"scenario_name": "demo", "seed": 99})
    run = answer.json()
    assert answer.status_code == 202 and run["scenario"] == "demo" and run["seed"] == 99


async def test_pages_of_runs_go_from_new_to_old(api: Harness) -> None:
    ids = [(await api.submit())["id"] for _ in range(5)]
    first = await api.get("/runs", limit=2)
    second = await api.get("/runs", limit=2, cursor=first["next"])
    third = await api.get("/runs", limit=2, cursor=second["next"])
    assert [run["id"] for page in (first, second, third) for run in page["items"]] == ids[::-1]
    assert third["next"] is None
    assert (await api.get("/runs", state="FINISHED"))["items"] == []
    assert len((await api.get("/runs", state="QUEUED"))["items"]) == 5


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"scenario_name": "demo", "scenario": TINY}, None),
        ({"scenario": {**TINY, "steps": 0}}, "steps"),
        ({"scenario": {**TINY, "workload": "rm -rf /"}}, "workload"),
        ({"scenario": {**TINY, "runtime": "unknown"}}, "runtime"),
        ({"scenario": {**TINY, "options": {"data": "/etc/passwd"}}}, "options.data"),
        ({"scenario": {**TINY, "faults": [{"kind": "nope", "target": {"rank": 0}}]}}, "faults[0].kind"),
        ({"scenario": {**TINY, "faults": [{"kind": "process_kill", "target": {"rank": 2}}]}}, "faults[0].target.rank"),
        (
            {"scenario": {**TINY, "faults": [{**KILL, "trigger": {"phase": "snapshot_copy"}}]}},
            "faults[0].trigger.phase",
        ),
        ({"scenario": TINY, "unknown": 1}, "unknown"),
        ({"scenario": "a text"}, "scenario"),
    ],
)
async def test_runs_that_cannot_be_are_refused(api: Harness, body: Json, field: str | None) -> None:
    document = problem(await api.post("/runs", body), 422)
    if field is not None:
        assert field in [error["field"] for error in document["errors"]]
    assert (await api.get("/runs"))["items"] == []


async def test_a_file_may_be_named_if_the_service_was_started_with_it(settings: Settings, tmp_path: Path) -> None:
    good, short, missing = (tmp_path / name for name in ("good", "short", "missing"))
    good.write_bytes(b"x" * 100)
    short.write_bytes(b"x" * 10)
    allowed = frozenset(str(path) for path in (good, short, missing))
    async with harness(replace(settings, allowed_files=allowed)) as api:
        assert (await api.submit(options={"data": str(good)}))["state"] == "QUEUED"
        for path, says in ((short, "holds 10 bytes"), (missing, "there is no file")):
            answer = await api.post("/runs", {"scenario": {**TINY, "options": {"data": str(path)}}})
            document = problem(answer, 422)
            assert f"options.data: {path}" in document["detail"] or f"no file {path}" in document["detail"]
            assert says in document["detail"]
        assert len((await api.get("/runs"))["items"]) == 1


async def test_what_is_not_there_is_404(api: Harness) -> None:
    for path in ("/runs/nix", "/runs/nix/steps", "/runs/nix/stream", "/trials/nix", "/trials/nix/timeline", "/nix"):
        assert "nix" in problem(await api.client.get(f"/api/v1{path}"), 404)["detail"]
    problem(await api.post("/runs", {"scenario_name": "nix"}), 404)
    problem(await api.post("/runs/nix/faults", KILL), 404)
    problem(await api.client.get("/api/v1/scenarios/..%2fsecrets"), 404)


async def test_wrong_methods_queries_and_bodies(api: Harness) -> None:
    problem(await api.client.put("/api/v1/runs"), 405)
    problem(await api.client.get("/api/v1/runs", params={"limit": 0}), 422)
    problem(await api.client.get("/api/v1/runs", params={"cursor": "x"}), 422)
    problem(await api.client.get("/api/v1/runs", params={"state": "DONE"}), 422)
    problem(await api.client.post("/api/v1/runs", content=b"{", headers={"content-type": "application/json"}), 422)
    # A form of a foreign page can send text without asking first; JSON it cannot.
    problem(await api.client.post("/api/v1/runs", content=b'{"scenario_name":"demo"}'), 415)


async def test_an_error_of_ours_tells_the_caller_nothing_inside(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    async with harness(settings) as api:
        monkeypatch.setattr("service.listing.runs", broken)
        transport = httpx.ASGITransport(app=api.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert "secret" not in problem(await client.get("/api/v1/runs"), 500)["detail"]


# --- idempotency -----------------------------------------------------------------------------------------------------


async def test_a_repeated_post_has_one_effect(api: Harness) -> None:
    first = await api.post("/runs", {"scenario": TINY}, **{"Idempotency-Key": "k1"})
    again = await api.post("/runs", {"scenario": TINY}, **{"Idempotency-Key": "k1"})
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    other = await api.post("/runs", {"scenario": TINY}, **{"Idempotency-Key": "k2"})
    assert other.json()["id"] != first.json()["id"]
    assert len((await api.get("/runs"))["items"]) == 2


async def test_a_key_belongs_to_one_request(api: Harness) -> None:
    await api.post("/runs", {"scenario": TINY}, **{"Idempotency-Key": "k1"})
    document = problem(await api.post("/runs", {"scenario_name": "demo"}, **{"Idempotency-Key": "k1"}), 422)
    assert document["type"].endswith("idempotency-key-reused")
    problem(await api.post("/runs", {"scenario": TINY}, **{"Idempotency-Key": "k" * 201}), 400)


async def test_a_refused_post_leaves_its_key_free(api: Harness) -> None:
    run, directory = await api.started()
    key = {"Idempotency-Key": "k1"}
    script = Script(directory)
    script.begin()
    script.emit("coordinator", "failure_detected", worker="w2", cause="exit", generation=0)
    api.tick()
    problem(await api.post(f"/runs/{run['id']}/faults", KILL, **key), 409)
    script.spawn(3)
    script.emit("w3", "spare_parked", worker="w3", node="n3")
    api.tick()
    first = await api.post(f"/runs/{run['id']}/faults", KILL, **key)
    again = await api.post(f"/runs/{run['id']}/faults", KILL, **key)
    assert first.status_code == again.status_code == 202 and first.json()["id"] == again.json()["id"]
    assert len((directory / "requests.jsonl").read_text().splitlines()) == 1
    script.close()


async def test_what_this_machine_cannot_do_to_a_network_is_refused(
    api: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "chaos.runtimes.abilities", lambda: Abilities(network_delay="no netem", network_loss="no netem")
    )
    monkeypatch.setattr("service.host.abilities", lambda: Abilities(network_delay="no netem"))
    isolated = {**TINY["cluster"], "isolation": "namespaces"}
    planned = [{"kind": "network_loss", "target": {"rank": 1}, "trigger": {"at_step": 5}}]
    refused = await api.post("/runs", {"scenario": {**TINY, "cluster": isolated, "faults": planned}})
    assert "no netem" in problem(refused, 422)["detail"]
    run, _ = await running(api, cluster=isolated)
    asked = {"kind": "network_delay", "target": {"rank": 1}, "dry_run": True}
    assert "no netem" in problem(await api.post(f"/runs/{run}/faults", asked), 422)["detail"]
    possible = await api.post(f"/runs/{run}/faults", {**asked, "kind": "network_partition"})
    assert "network_partition would hit w1" in possible.json()["would"]["text"], possible.text


# --- faults ----------------------------------------------------------------------------------------------------------


async def running(api: Harness, **changes: Any) -> tuple[str, Script]:
    run, directory = await api.started(**changes)
    script = Script(directory)
    script.begin()
    for step in range(3):
        script.step(step)
    script.close()
    api.tick()
    return str(run["id"]), script


async def test_a_fault_is_stored_and_handed_to_the_trial(api: Harness) -> None:
    run, script = await running(api)
    answer = await api.post(
        f"/runs/{run}/faults",
        {"kind": "process_stop", "target": {"rank": 0}, "params": {"ttl_s": 30}, "reason": "why not"},
    )
    fault = answer.json()
    assert answer.status_code == 202 and fault["state"] == "REQUESTED" and fault["trigger"] == {"now": True}
    (line,) = (script.directory / "requests.jsonl").read_text().splitlines()
    assert f'"fault":"{fault["id"]}"' in line and '"ttl_s":30' in line
    api.tick()
    assert len((script.directory / "requests.jsonl").read_text().splitlines()) == 1
    assert (await api.get(f"/runs/{run}/faults"))["items"] == [fault]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"kind": "unknown"}, 422, "process_kill"),
        ({"kind": "network_partition"}, 422, "set cluster.isolation to namespaces"),
        ({"target": {"rank": 2}}, 422, "0..1"),
        ({"target": {"rank": -1}}, 422, "target.rank"),
        ({"target": {}}, 422, "target"),
        ({"target": {"rank": 0, "spare": True}}, 422, "target"),
        ({"params": {"ttl_s": 1}}, 422, "ttl_s"),
        ({"trigger": {"at_step": 10}}, 422, "0..9"),
        ({"trigger": {"at_step": 1}}, 409, "step 1 is over"),
        ({"trigger": {"phase": "lunch"}}, 422, "backward"),
        ({"trigger": {"phase": "replica_send"}}, 422, "gpt-tiny never enters replica_send; its phases are: forward"),
        ({"trigger": {"after_s": 1e8}}, 422, "trigger.after_s: 100000000.0 is greater than the maximum of 10000000"),
        ({"more": 1}, 422, "more"),
    ],
)
async def test_faults_that_cannot_be_are_refused(api: Harness, change: Json, status: int, says: str) -> None:
    run, script = await running(api)
    assert says in problem(await api.post(f"/runs/{run}/faults", {**KILL, **change}), status)["detail"]
    assert (await api.get(f"/runs/{run}/faults"))["items"] == []
    assert not (script.directory / "requests.jsonl").exists()


async def test_a_run_plans_no_more_faults_than_can_be_written_at_once(api: Harness) -> None:
    often = {**KILL, "trigger": {"poisson": {"mtbf_s": 1, "count": 1000}}}
    answer = await api.post("/runs", {"scenario": {**TINY, "faults": [often]}, "trials": 11})
    assert "11 trials of 1000 faults each" in problem(answer, 422)["detail"]


async def test_a_fault_needs_a_running_run(api: Harness) -> None:
    run = await api.submit()
    document = problem(await api.post(f"/runs/{run['id']}/faults", KILL), 409)
    assert document["state"] == "QUEUED"


async def test_a_fault_needs_the_disturbed_part(api: Harness) -> None:
    run, script = await running(api)
    script.emit("injector", "trial_phase", part="twin")
    script.close()
    api.tick()
    assert "twin" in problem(await api.post(f"/runs/{run}/faults", KILL), 409)["detail"]


async def test_a_fault_after_the_result_is_refused(api: Harness) -> None:
    run, script = await running(api)
    script.result()
    assert "has just ended" in problem(await api.post(f"/runs/{run}/faults", KILL), 409)["detail"]


async def test_a_second_fault_waits_for_a_free_spare(api: Harness) -> None:
    run, script = await running(api)
    first = (await api.post(f"/runs/{run}/faults", KILL)).json()
    # Asked for, then applied but not yet noticed, then healed: the one spare is spoken for all the time.
    assert "spare" in problem(await api.post(f"/runs/{run}/faults", KILL), 409)["detail"]
    quiet = {"kind": "cpu_throttle", "target": {"rank": 0}}  # by which nobody is lost
    assert (await api.post(f"/runs/{run}/faults", quiet)).status_code == 202
    script.kill_rank_1(first["id"], step=3)
    script.close()
    api.tick()
    problem(await api.post(f"/runs/{run}/faults", KILL), 409)
    problem(await api.post(f"/runs/{run}/faults", {**KILL, "target": {"spare": True}}), 409)
    script.spawn(3)
    script.emit("w3", "spare_parked", worker="w3", node="n3")
    script.close()
    api.tick()
    assert (await api.post(f"/runs/{run}/faults", KILL)).status_code == 202


async def test_without_spares_no_rank_may_be_hit(api: Harness) -> None:
    run, _ = await running(api, cluster={"nodes": 2, "spares": 0})
    problem(await api.post(f"/runs/{run}/faults", KILL), 409)
    problem(await api.post(f"/runs/{run}/faults", {**KILL, "target": {"spare": True}}), 422)


async def test_a_dry_run_names_the_target_and_does_nothing(api: Harness) -> None:
    run, script = await running(api)
    answer = await api.post(f"/runs/{run}/faults", {**KILL, "dry_run": True})
    would = answer.json()["would"]
    assert answer.status_code == 200 and (would["worker"], would["rank"], would["pid"]) == ("w1", 1, 4_000_001)
    spare = (await api.post(f"/runs/{run}/faults", {**KILL, "target": {"spare": True}, "dry_run": True})).json()
    assert spare["would"]["worker"] == "w2"
    drawn = (await api.post(f"/runs/{run}/faults", {**KILL, "target": {"random_rank": True}, "dry_run": True})).json()
    assert drawn["would"]["worker"] is None
    assert (await api.get(f"/runs/{run}/faults"))["items"] == []
    assert not (script.directory / "requests.jsonl").exists()


async def test_planned_faults_are_there_from_the_start(api: Harness) -> None:
    run = await api.submit(faults=[{"id": "first", **KILL, "trigger": {"at_step": 4}}])
    (fault,) = (await api.get(f"/runs/{run['id']}/faults"))["items"]
    assert (fault["id"], fault["state"], fault["trigger"]) == ("first", "REQUESTED", {"at_step": 4})


# --- the rest --------------------------------------------------------------------------------------------------------


async def test_catalog(api: Harness) -> None:
    kinds = (await api.get("/fault-kinds"))["items"]
    assert {"process_kill", "process_stop"} <= {kind["kind"] for kind in kinds}
    assert "demo" in [scenario["name"] for scenario in (await api.get("/scenarios"))["items"]]
    assert (await api.get("/scenarios/demo"))["workload"] == "gpt"
    assert "gpt" in [workload["name"] for workload in (await api.get("/workloads"))["items"]]


async def test_health(api: Harness) -> None:
    assert (await api.client.get("/healthz")).json() == {"status": "ok"}
    problem(await api.client.get("/readyz"), 503)  # in these tests nobody follows the trials


async def test_a_full_disk_is_not_ready_also_while_nothing_waits(api: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(api.service.executor), "following", True)
    assert (await api.client.get("/readyz")).json() == {"status": "ok"}
    full = os.statvfs_result((4096, 4096, 16, 0, 0, 100, 10, 10, 0, 255))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: full)
        assert "only 0 MiB are free" in problem(await api.client.get("/readyz"), 503)["detail"]
    assert (await api.client.get("/readyz")).status_code == 200


async def test_a_full_disk_is_told_in_words(api: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> NoReturn:
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(api.service.database, "write", full)
    assert "disk is full" in problem(await api.post("/runs", {"scenario": TINY}), 503)["detail"]


async def test_foreign_pages_are_kept_out(api: Harness) -> None:
    rebound = await api.client.get("/api/v1/runs", headers={"host": "evil.example:8642"})
    problem(rebound, 403)
    foreign = await api.client.post("/api/v1/runs", json={}, headers={"origin": "http://evil.example"})
    problem(foreign, 403)
    own = await api.client.post("/api/v1/runs", json={"scenario": TINY}, headers={"origin": "http://127.0.0.1"})
    assert own.status_code == 202


async def test_openapi_tells_of_problems_and_keys(api: Harness) -> None:
    document = (await api.client.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "application/problem+json" in operation["responses"]["4XX"]["content"], (path, method)
            # A sign-in is no change that could happen twice, and its answer must not be kept.
            if method == "post" and path != "/api/v1/session":
                assert "Idempotency-Key" in [item["name"] for item in operation["parameters"]], path


async def test_a_misspelt_query_parameter_is_named_with_the_known_ones(api: Harness) -> None:
    answer = await api.client.get("/api/v1/runs", params={"curser": "3"})
    assert answer.status_code == 422
    assert "'curser': this resource knows branch, commit, cursor, host, limit, " in answer.json()["detail"]
