"""The service killed with SIGKILL at random instants: nothing recorded is lost, each run ends, none is run twice.

Two runs of five have a fault, one that ends a rank and one that lasts: no process of them is left, frozen or not.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.procfs import all_processes
from chaos.reading import EventTail
from service.client import Client, Json
from service.context import running_in
from tests.service.helpers import TINY
from tests.support import wait_until

pytestmark = [pytest.mark.process]

KILLED: Json = {"kind": "process_kill", "target": {"rank": 1}, "trigger": {"at_step": 10}}
# Nobody misses a spare, so it is frozen until the trial takes that back, whatever befalls the service meanwhile.
FROZEN: Json = {
    "kind": "process_stop",
    "target": {"spare": True},
    "trigger": {"at_step": 10},
    "params": {"ttl_s": 0.8},
}
HIT: Json = {**TINY, "runtime": "fake", "steps": 60, "checks": ["fired", "recovered", "agreement", "no_leak"]}
SCENARIOS: tuple[Json, ...] = (TINY, {**HIT, "faults": [KILLED]}, TINY, {**HIT, "faults": [FROZEN]}, TINY)


class StandIn:
    """The service of `stand_in`, which may die at any time and be started again."""

    def __init__(self, directory: Path, database_url: str | None) -> None:
        self.directory = directory
        self.command = [sys.executable, "-m", "tests.service.stand_in", str(directory)]
        self.command += [] if database_url is None else [database_url]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.directory / "service.err").open("ab") as said:
            self.process = subprocess.Popen(self.command, stderr=said)

    def client(self) -> Client:
        def found() -> str:
            running = running_in(self.directory)
            return running.url if running is not None and self.process and running.pid == self.process.pid else ""

        said = self.directory / "service.err"
        client = Client(wait_until(found, f"the service's address; what it said is in {said}", 60.0))
        wait_until(client.ready, "the service to be ready", 60.0)
        return client

    def kill(self, after_s: float) -> None:
        """At an instant that nobody chose for what happens then."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)
        self.process.kill()
        self.process.wait()


@pytest.fixture(autouse=True)
def fake_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOENIX_RUNTIMES", "tests.contract.fake_runtime:FAKE")
    monkeypatch.setenv("FAKE_STEP_S", "0.02")


@pytest.fixture
def service(run_dir: Path, database_url: str | None) -> Iterator[StandIn]:
    running = StandIn(run_dir, database_url)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_killed_a_few_times(service: StandIn) -> None:
    killed_at_random(service, runs=5, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [20261130])
def test_killed_in_fifty_runs(service: StandIn, seed: int) -> None:
    killed_at_random(service, runs=50, seed=seed)


def killed_at_random(service: StandIn, *, runs: int, seed: int) -> None:
    rng = random.Random(seed)
    service.start()
    with service.client() as client:
        scenarios = [SCENARIOS[number % len(SCENARIOS)] for number in range(runs)]
        ids = [client.submit(scenario=one, reason=f"run {number}")["id"] for number, one in enumerate(scenarios)]
    kills = 0
    deadline = time.monotonic() + 20.0 * runs
    while True:
        # From before it has read its database to long after it has begun to follow.
        service.kill(rng.uniform(0.0, 3.0))
        kills += 1
        service.start()
        if kills % 3:
            continue
        with service.client() as client:
            waiting = [run for run in client.runs() if run["state"] in ("QUEUED", "RUNNING")]
        if not waiting or time.monotonic() > deadline:
            break
    with service.client() as client:
        ended = [client.wait(run, timeout_s=60.0) for run in ids]
        assert [(run["state"], run["verdict"]) for run in ended] == [("FINISHED", "PASS")] * runs, f"seed {seed}"
        assert len(list(client.runs())) == runs and kills >= 3
        for run, scenario in zip(ended, scenarios, strict=True):
            _nothing_is_lost_or_doubled(client, run, scenario)
        assert _processes_below(service.directory / "trials") == [], f"seed {seed}"
    print(f"seed {seed}: {runs} runs, {kills} kills")


def _nothing_is_lost_or_doubled(client: Client, run: Json, scenario: Json) -> None:
    (trial,) = client.trials(run["id"])
    directory = Path(trial["directory"])
    assert (directory / "starts").read_text() == "x", f"{trial['id']} was started more than once"
    written = [(event.kind, event.at) for event in EventTail(directory / "run" / "events").read()]
    assert sorted((event["kind"], event["at"]) for event in client.events(run["id"])) == sorted(written)
    assert {row["action"] for row in client.audit(target=run["id"])} == {"run.submit"}
    steps = len(client.steps(run["id"]))
    if scenario is TINY:
        assert len(written) == 60 and steps == 30
        return
    (fault,) = scenario["faults"]
    lasts = "ttl_s" in fault.get("params", {})
    assert [kind for kind, _ in written if kind.startswith("fault_")] == ["fault_injected", "fault_reverted"][
        : 1 + lasts
    ]
    assert [seen["state"] for seen in client.faults(run["id"])] == ["REVERTED" if lasts else "INJECTED"]
    assert steps == scenario["steps"]


def _processes_below(trials: Path) -> list[str]:
    """Whatever of a trial still lives, and how: a frozen one shows as T."""
    found = []
    for stat in all_processes():
        with suppress(OSError):
            line = Path(f"/proc/{stat.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [f"{stat.pid} {stat.state} {line}"] * (f"{trials}/" in line and not stat.ended)
    return found
