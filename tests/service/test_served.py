"""The service as a process, over trials of a runtime without torch: faults, streams, kill -9, a clean end."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from chaos.reading import EventTail
from service.client import Client, Json
from service.context import address_in
from tests.support import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCENARIO: Json = {
    "name": "fake",
    "workload": "gpt-tiny",
    "runtime": "fake",
    "steps": 150,
    "cluster": {"nodes": 3, "ranks_per_node": 1, "spares": 1},
}


@pytest.fixture(autouse=True)
def fake_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOENIX_RUNTIMES", "tests.contract.fake_runtime:FAKE")
    monkeypatch.setenv("FAKE_STEP_S", "0.01")


class Served:
    """A service that a test may kill and start again on the same data directory."""

    def __init__(self, directory: Path, database_url: str | None) -> None:
        self.directory = directory
        self.database = () if database_url is None else ("--database", database_url)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Client:
        command = [sys.executable, "-m", "service.cli", "serve", "--port", "0", "--dir", str(self.directory)]
        command += self.database
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        client = Client(wait_until(lambda: address_in(self.directory) or "", "the service's address", 60.0))
        wait_until(client.ready, "the service to be ready", 60.0)
        return client

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(15)
        if self.process.stderr is not None:
            self.process.stderr.close()
        self.process = None
        return code


@pytest.fixture
def served(run_dir: Path, database_url: str | None) -> Iterator[Served]:
    service = Served(run_dir, database_url)
    yield service
    if service.process is not None:
        service.end(signal.SIGKILL)


def ended(client: Client, run: str) -> Json:
    def look() -> Json | None:
        state = client.get(f"/runs/{run}")
        return state if state["state"] not in ("QUEUED", "RUNNING") else None

    found = wait_until(look, f"the end of {run}", 60.0)
    assert found is not None
    return found


def at_step(client: Client, run: str, step: int) -> None:
    wait_until(lambda: (client.get(f"/runs/{run}")["step"] or -1) >= step, f"step {step} of {run}", 60.0)


@pytest.fixture
def go(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The training waits at its hundredth step until there is this file: on a busy machine it would be over else."""
    file = run_dir / "go"
    monkeypatch.setenv("FAKE_HOLD", f"100:{file}")
    return file


def test_a_rest_call_kills_a_rank_and_a_spare_takes_over(served: Served, go: Path) -> None:
    with served.start() as client:
        run = client.post("/runs", {"scenario": SCENARIO})["id"]
        at_step(client, run, 10)
        fault = client.post(f"/runs/{run}/faults", {"kind": "process_kill", "target": {"rank": 1}})
        wait_until(lambda: client.faults(run)[0]["state"] == "INJECTED", "the fault", 60.0)
        go.touch()

        def healed() -> bool:
            recovery = client.get(f"/runs/{run}/faults")["items"][0]["recovery"]
            return recovery is not None and recovery["recovery_s"] is not None

        wait_until(healed, "the recovery", 30.0)
        state = ended(client, run)
        assert (state["state"], state["verdict"], state["error"]) == ("FINISHED", "PASS", None), state
        assert state["step"] == SCENARIO["steps"] - 1
        (recovery,) = client.get(f"/trials/{state['trials'][0]}")["recoveries"]
        assert recovery["fault"]["id"] == fault["id"] and set(recovery["checks"].values()) == {"PASS"}
        (seen,) = client.get(f"/runs/{run}/faults")["items"]
        assert seen["state"] == "INJECTED" and seen["recovery"] == recovery
        assert client.get(f"/trials/{state['trials'][0]}/timeline")["recoveries"][0]["bars"]
    assert served.end(signal.SIGTERM) == 0


def test_kill_9_at_random_instants_loses_and_doubles_nothing(served: Served, go: Path) -> None:
    rng = random.Random(20261129)
    client = served.start()
    scenario = {**SCENARIO, "steps": 300}
    run = client.post("/runs", {"scenario": scenario})["id"]
    for number, step in enumerate(sorted(rng.sample(range(1, 99), 3))):
        at_step(client, run, step)
        if number == 0:  # the service dies with the request just accepted
            client.post(f"/runs/{run}/faults", {"kind": "process_kill", "target": {"rank": 2}})
        client.__exit__()
        served.end(signal.SIGKILL)
        client = served.start()
    with client:
        wait_until(lambda: client.faults(run)[0]["state"] == "INJECTED", "the fault", 60.0)
        go.touch()
        state = ended(client, run)
        assert (state["state"], state["verdict"]) == ("FINISHED", "PASS"), state
        assert [step["step"] for step in client.get(f"/runs/{run}/steps")["items"]] == list(range(300))
        assert len(client.get(f"/trials/{state['trials'][0]}")["recoveries"]) == 1
        directory = Path(client.get(f"/trials/{state['trials'][0]}")["directory"])
        written = [
            (part, event.kind, event.at)
            for part in ("run", "twin")
            for event in EventTail(directory / part / "events").read()
        ]
        stored: list[tuple[str, str, int]] = []
        after = 0
        while items := client.get(f"/runs/{run}/events", after=after, limit=5000)["items"]:
            stored += [(item["part"], item["kind"], item["at"]) for item in items]
            after = items[-1]["offset"]
        assert sorted(stored) == sorted(written)
        assert len((directory / "requests.jsonl").read_text().splitlines()) == 1


def test_kill_9_of_service_and_trial_leaves_an_abandoned_run(served: Served) -> None:
    client = served.start()
    run = client.post("/runs", {"scenario": SCENARIO})["id"]
    at_step(client, run, 5)
    directory = Path(client.get(f"/runs/{run}/trials")["items"][0]["directory"])
    client.__exit__()
    served.end(signal.SIGKILL)
    os.kill(json.loads((directory / "pid").read_text())["pid"], signal.SIGKILL)
    with served.start() as client:
        state = ended(client, run)
        assert (state["state"], state["verdict"]) == ("ABANDONED", "UNKNOWN") and state["error"]


def test_the_stream_is_live_resumes_and_does_not_hold_up_the_end(served: Served) -> None:
    with served.start() as client:
        run = client.post("/runs", {"scenario": {**SCENARIO, "steps": 5000}})["id"]
        url = f"{client.url}/api/v1/runs/{run}/stream"
        first = take(url, 20)
        second = take(url, 20, last=first[-1])
        assert len({*first, *second}) == 40 and min(second) > max(first)
        with httpx.stream("GET", url, timeout=30) as attached:
            lines = attached.iter_lines()
            next(lines)
            assert served.end(signal.SIGTERM) == 0  # bounded by the wait in `end`
    with served.start() as client:
        client.post(f"/runs/{run}/cancel", {"reason": "the test is over"})
        state = ended(client, run)
        assert (state["state"], state["verdict"]) == ("CANCELLED", "UNKNOWN") and "the test is over" in state["error"]


def take(url: str, count: int, last: int = 0) -> list[int]:
    """The ids of the next events."""
    ids: list[int] = []
    headers = {"Last-Event-ID": str(last)} if last else {}
    with httpx.stream("GET", url, headers=headers, timeout=30) as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                ids.append(int(line[4:]))
            if len(ids) == count:
                break
    return ids


def test_pages_and_api_share_the_port(served: Served) -> None:
    with served.start() as client:
        home = httpx.get(client.url)
        assert home.status_code == 200 and home.headers["content-type"].startswith("text/html")
        assert httpx.get(f"{client.url}/api/v1/nix").headers["content-type"] == "application/problem+json"
        assert httpx.get(client.url, headers={"host": "evil.example"}).status_code == 403
    assert served.end(signal.SIGINT) == 0


@pytest.mark.soak
def test_an_attached_service_cancels_and_ends_with_its_parent(run_dir: Path) -> None:
    command = [sys.executable, "-m", "service.cli", "serve", "--port", "0", "--dir", str(run_dir), "--attached"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        url = wait_until(lambda: address_in(run_dir) or "", "the service's address")
        with Client(url) as client:
            wait_until(client.ready, "the service to be ready", 60.0)
            run = client.post("/runs", {"scenario": {**SCENARIO, "steps": 5000}})["id"]
            at_step(client, run, 3)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
    assert (run_dir / "trials" / f"{run}-1" / "result.json").exists()


def refused(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr, done
    return done.stderr


def test_a_used_port_is_refused(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for command in ("serve", "demo"):
            said = refused(command, "--port", port, "--dir", str(run_dir / command))
            assert port in said and "--port" in said


@pytest.mark.soak
def test_a_directory_has_one_service(served: Served) -> None:
    with served.start() as client:
        assert client.url in refused("serve", "--port", "0", "--dir", str(served.directory))
        assert client.url in refused("demo", "--port", "0", "--dir", str(served.directory))


def test_a_file_in_place_of_the_directory(run_dir: Path) -> None:
    (run_dir / "file").touch()
    assert "--dir" in refused("serve", "--port", "0", "--dir", str(run_dir / "file"))
    assert "--dir" in refused("demo", "--port", "0", "--dir", str(run_dir / "file"))


@pytest.mark.soak
def test_inject_from_the_command_line(served: Served) -> None:
    base = [sys.executable, "-m", "service.cli", "inject", "--dir", str(served.directory)]

    def inject(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*base, *arguments], capture_output=True, text=True, timeout=60, check=False)

    with served.start() as client:
        nobody = inject("process_kill", "--rank", "1")
        assert nobody.returncode == 2 and "no run is running" in nobody.stderr
        run = client.post("/runs", {"scenario": {**SCENARIO, "steps": 5000}})["id"]
        at_step(client, run, 3)
        dry = inject("process_kill", "--rank", "1", "--dry-run")
        assert dry.returncode == 0 and "would hit w1 (rank 1" in dry.stdout
        wrong = inject("process_kill", "--rank", "7")
        assert wrong.returncode == 2 and "0..2" in wrong.stderr
        real = inject("process_stop", "--rank", "1", "--param", "ttl_s=5", "--reason", "a test", "--json")
        assert real.returncode == 0 and json.loads(real.stdout)["params"] == {"ttl_s": 5}
        client.post(f"/runs/{run}/cancel", {"reason": "the test is over"})
        ended(client, run)
