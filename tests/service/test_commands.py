"""The commands that speak with a service: one service, and each of them once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.client import Client, ClientError
from tests.service.helpers import TINY, Json
from tests.service.test_killed import StandIn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """One for all tests here, in their order: the last one closes it with tokens."""
    running = StandIn(tmp_path_factory.mktemp("service"), None)
    running.start()
    running.client().__exit__()
    yield running
    running.kill(0.0)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PHOENIX_SERVER", "PHOENIX_TOKEN", "PHOENIX_DATABASE"):
        monkeypatch.delenv(name, raising=False)


def phoenix(service: StandIn, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "--dir", str(service.directory)])
    assert done.exit_code == code, (arguments, done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def told(service: StandIn, *arguments: str) -> Json:
    document: Json = json.loads(phoenix(service, *arguments, "--json"))
    return document


def test_each_command_once(service: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(TINY))
    run = told(service, "submit", str(file), "--trials", "2", "--wait", "--reason", "a test")
    assert (run["state"], run["verdict"], run["progress"]) == ("FINISHED", "PASS", {"done": 2, "total": 2})
    assert run["id"] in phoenix(service, "runs") and "FINISHED" in phoenix(service, "runs", "--state", "FINISHED")
    assert "there is no scenario 'nix'" in phoenix(service, "submit", "nix", code=2)
    assert "already" in phoenix(service, "cancel", run["id"], code=2)

    assert "say why" in phoenix(service, "halt", code=2)
    assert "0 running run(s)" in phoenix(service, "halt", "--dry-run")
    halt = told(service, "halt", "--reason", "smoke")
    assert halt["active"] and "halted by local (smoke)" in phoenix(service, "halt", "--status")
    assert "in force already; halted by local (smoke)" in phoenix(service, "halt", "--reason", "more smoke")
    waits = f"halted (smoke): it begins once that is released: phoenix halt --release {halt['id']}"
    queued = phoenix(service, "submit", str(file))
    assert "QUEUED" in queued and waits in queued
    suite = json.loads(
        phoenix(service, "submit", "suite:nightly", "--json").partition("\n")[2]
    )  # after what it waits for
    assert (suite["suite"], suite["state"]) == ("nightly", "QUEUED") and suite["progress"]["total"] > 1
    assert "CANCELLED" in phoenix(service, "cancel", suite["id"])
    assert "there is no suite 'nix'" in phoenix(service, "submit", "suite:nix", code=2)
    assert "is over" in phoenix(service, "halt", "--release", "current", "--reason", "gone")
    assert "no halt is in force" in phoenix(service, "halt", "--status")
    assert "no fault 'nix'" in phoenix(service, "revert", "nix", code=2)

    assert "choose one of" in phoenix(service, "schedule", "create", "n", "--scenario", "demo", code=2)
    often = ("schedule", "create", "n", "--scenario", "demo", "--every", "1", "--stale-after", "0")
    refused = phoenix(service, *often, code=2)
    assert "--every: Input should be" in refused and "--stale-after: Input should be" in refused, refused
    assert "phoenix: state: " in phoenix(service, "runs", "--state", "gone", code=2)
    nightly = ("schedule", "create", "nightly", "--scenario", "demo", "--cron", "0 2 * * *", "--timezone", "Asia/Tokyo")
    assert "02:00:00 JST" in phoenix(service, *nightly)
    assert "nightly" in phoenix(service, "schedule", "list")
    assert "paused" in phoenix(service, "schedule", "pause", "nightly", "--reason", "holidays")
    assert "due next" in phoenix(service, "schedule", "resume", "nightly")
    started = told(service, "schedule", "run", "nightly")
    assert started["schedule"] and started["id"] in phoenix(service, "schedule", "firings", "nightly")
    assert "is deleted" in phoenix(service, "schedule", "delete", "nightly")
    assert "no schedule 'nightly'" in phoenix(service, "schedule", "pause", "nightly", code=2)


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "127.0.0.1:8642", "http://", "", "http://127.0.0.1:x", "http://127.0.0.1:99999"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ClientError, match="http://HOST:PORT"):
        Client(url)


def test_the_client_follows_a_run(service: StandIn) -> None:
    with service.client() as client:
        run = client.submit(scenario=TINY, key="once")
        assert client.submit(scenario=TINY, key="once")["id"] == run["id"]
        assert client.wait_for_step(run["id"], 3)["step"] >= 3
        seen = list(client.stream(run["id"]))
        ended = client.wait(run["id"])
        assert ended["verdict"] == "PASS" and len(seen) == 60 == len(list(client.events(run["id"])))
        assert next(client.runs(limit=1))["id"] == run["id"]
        with pytest.raises(ClientError) as refusal:
            client.inject(run["id"], "process_kill", {"rank": 0})
        assert refusal.value.status == 409 and refusal.value.problem["type"].endswith(":run-not-running")
        assert client.active_halt() is None


def test_tokens_close_the_service_and_the_data_directory_opens_it(
    service: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service.client() as client:
        url = client.url
        assert client.get("/runs")["items"]
        assert "there is no token" in phoenix(service, "tokens", "list")
        assert "--role admin" in phoenix(service, "tokens", "create", "eve", "--role", "viewer", code=2)
        assert "say who uses it" in phoenix(service, "tokens", "create", " ", code=2)
        token = phoenix(service, "tokens", "create", "ada").strip()
        with pytest.raises(ClientError, match="PHOENIX_TOKEN"):
            client.get("/runs")
    assert "tiny" in phoenix(service, "runs"), "the command line beside the service needs none"
    with Client(url, token=token) as client:
        assert client.get("/session")["required"] and client.get("/runs")["items"]
        viewer = client.create_token("eve", "viewer")
    with Client(url, token=viewer["token"]) as client, pytest.raises(ClientError, match="needs the role operator"):
        client.submit(scenario=TINY)
    monkeypatch.setenv("PHOENIX_SERVER", url)
    monkeypatch.setenv("PHOENIX_TOKEN", token)
    assert "tiny" in phoenix(service, "runs")
    identity = next(item["id"] for item in told(service, "tokens", "list")["items"] if item["name"] == "ada")
    assert "make another one first" in phoenix(service, "tokens", "revoke", identity, code=2)
    assert "is revoked" in phoenix(service, "tokens", "revoke", identity, "--force")
    assert "expired or revoked" in phoenix(service, "runs", code=2)
