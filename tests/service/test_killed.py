"""The service killed with SIGKILL at random instants: nothing recorded is lost, each run ends, none is run twice."""

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

from chaos.reading import EventTail
from service.client import Client, Json
from service.context import running_in
from tests.service.helpers import TINY
from tests.support import wait_until

pytestmark = [pytest.mark.process]


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


@pytest.fixture
def service(run_dir: Path, database_url: str | None) -> Iterator[StandIn]:
    running = StandIn(run_dir, database_url)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()


@pytest.mark.soak
@pytest.mark.timeout(120)
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
        ids = [client.submit(scenario=TINY, reason=f"run {number}")["id"] for number in range(runs)]
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
        for run in ended:
            _nothing_is_lost_or_doubled(client, run)
    print(f"seed {seed}: {runs} runs, {kills} kills")


def _nothing_is_lost_or_doubled(client: Client, run: Json) -> None:
    (trial,) = client.trials(run["id"])
    directory = Path(trial["directory"])
    assert (directory / "starts").read_text() == "x", f"{trial['id']} was started more than once"
    written = [(event.kind, event.at) for event in EventTail(directory / "run" / "events").read()]
    assert sorted((event["kind"], event["at"]) for event in client.events(run["id"])) == sorted(written)
    assert len(written) == 60 and len(client.steps(run["id"])) == 30
    assert {row["action"] for row in client.audit(target=run["id"])} == {"run.submit"}
