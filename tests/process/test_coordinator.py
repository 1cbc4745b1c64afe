"""The coordinator's process is killed, at any instant, and training goes on bit for bit as if it had not been."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phoenix_core.events import Event
from tests.process.job import Finished, Watched, run

STEPS = 40
AT = 10
EVERY = 5
FLAGS = ("--nnodes", "2", "--spares", "2")
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]  # two jobs, each with a deadline of its own
When = Callable[[Event], bool]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = run(tmp_path_factory.mktemp("twin"), "--steps", str(STEPS), flags=("--nnodes", "2", "--spares", "0"))
    assert finished.code == 0, finished.stderr
    return finished


class Killer:
    """Kills the coordinator, and with it the workers of `ranks`, at the first event of which `when` says so."""

    def __init__(self, when: When, *ranks: int, spares: int = 0) -> None:
        self.when, self.ranks, self.spares = when, ranks, spares
        self.struck_ns = 0

    def __call__(self, event: Event, watched: Watched) -> None:
        if not self.struck_ns and len(watched.parked) >= self.spares and self.when(event):
            self.struck_ns = time.monotonic_ns()
            os.kill(watched.coordinator, signal.SIGKILL)
            for rank in self.ranks:
                os.kill(watched.pids[watched.ranks[rank]], signal.SIGKILL)


class AfterARank:
    """Kills a rank in training, and the coordinator at an event of what follows."""

    def __init__(self, kind: str) -> None:
        self.killer = Killer(lambda event: self.hit and event.kind == kind)
        self.hit = False

    @property
    def struck_ns(self) -> int:
        return self.killer.struck_ns

    def __call__(self, event: Event, watched: Watched) -> None:
        self.killer(event, watched)
        if not self.hit and len(watched.parked) == 2 and in_training(event):
            self.hit = True
            os.kill(watched.pids[watched.ranks[1]], signal.SIGKILL)


class BeforeARank:
    """Kills the coordinator in training, and a rank as soon as another one leads."""

    def __init__(self) -> None:
        self.killer = Killer(in_training, spares=2)
        self.hit = False

    @property
    def struck_ns(self) -> int:
        return self.killer.struck_ns if self.hit else 0

    def __call__(self, event: Event, watched: Watched) -> None:
        self.killer(event, watched)
        if event.kind == "coordinator_restarted":
            self.hit = True
            os.kill(watched.pids[watched.ranks[1]], signal.SIGKILL)


def in_training(event: Event) -> bool:
    return event.kind == "step_committed" and event.rank == 0 and event.step is not None and event.step >= AT


def equal(finished: Finished, twin: Finished) -> None:
    assert finished.code == 0, finished.stderr
    assert finished.losses == twin.losses
    assert finished.digests == twin.digests and finished.buffers == twin.buffers


def test_training_does_not_wait_for_a_coordinator(run_dir: Path, twin: Finished) -> None:
    killer = Killer(in_training)
    finished = run(run_dir, "--steps", str(STEPS), flags=("--nnodes", "2", "--spares", "0"), on_event=killer)
    equal(finished, twin)
    (restarted,) = [event for event in finished.events if event.kind == "coordinator_restarted"]
    meanwhile = [e for e in finished.events if killer.struck_ns < e.at < restarted.at and e.kind == "step_committed"]
    assert meanwhile and restarted.data == {"ranks": 2, "spares": 0, "recovering": False}
    assert not [event for event in finished.events if event.kind == "failure_detected"]
    assert "the coordinator was ended by signal 9; another one is started" in finished.stderr
    assert "the new coordinator found 2 ranks and 0 spares; the job went on meanwhile" in finished.stderr


@pytest.mark.soak
@pytest.mark.parametrize(
    "kind",
    [
        "failure_detected", "world_formed", "spare_assigned", "worker_quiesced", "model_built", "communicator_ready",
        "state_restored", "generation_resumed",
    ],
)  # fmt: skip
def test_a_recovery_that_nobody_leads_any_more_begins_anew(run_dir: Path, twin: Finished, kind: str) -> None:
    killer = AfterARank(kind)
    finished = run(run_dir, "--steps", str(STEPS), flags=FLAGS, on_event=killer)
    assert killer.struck_ns
    equal(finished, twin)
    formed = [event.generation for event in finished.events if event.kind == "world_formed"]
    assert len(set(formed)) == len(formed)
    assert finished.recoveries[-1].complete


class WithACheckpoint:
    """Says so once both ranks have written a second checkpoint: the first one is whole then, and known to be."""

    def __init__(self) -> None:
        self.written: set[int | None] = set()

    def __call__(self, event: Event) -> bool:
        if event.kind == "checkpoint_written" and event.step is not None and event.step >= 2 * EVERY:
            self.written.add(event.rank)
        return len(self.written) == 2


@pytest.mark.soak
@pytest.mark.parametrize(
    "killer",
    [
        pytest.param(lambda: Killer(in_training, 1, spares=2), id="a-rank-while-nobody-leads"),
        pytest.param(lambda: Killer(WithACheckpoint(), 0, 1, spares=2), id="and-the-disk-is-the-last-resort"),
        pytest.param(BeforeARank, id="a-rank-just-after"),
    ],
)
def test_a_rank_that_fails_then_is_replaced(
    run_dir: Path, tmp_path: Path, twin: Finished, killer: Callable[[], Killer | BeforeARank]
) -> None:
    struck = killer()
    flags = (*FLAGS, "--checkpoint-dir", str(tmp_path / "disk"), "--checkpoint-every", str(EVERY))
    finished = run(run_dir, "--steps", str(STEPS), flags=flags, on_event=struck)
    assert struck.struck_ns
    equal(finished, twin)
    assert any(event.kind == "failure_detected" for event in finished.events)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["job_started", "worker_spawned", "world_formed"])
def test_a_job_that_has_not_begun_to_train_begins(run_dir: Path, twin: Finished, kind: str) -> None:
    killer = Killer(lambda event: event.kind == kind)
    finished = run(run_dir, "--steps", str(STEPS), flags=("--nnodes", "2", "--spares", "0"), on_event=killer)
    assert killer.struck_ns
    equal(finished, twin)


@pytest.mark.soak
def test_coordinators_that_die_one_after_the_other_end_the_job(run_dir: Path) -> None:
    trains = False

    def kill_each(event: Event, watched: Watched) -> None:
        nonlocal trains
        if (in_training(event) and not trains) or (trains and event.kind == "coordinator_started"):
            trains = True
            os.kill(watched.coordinator, signal.SIGKILL)

    finished = run(run_dir, "--steps", "100000", flags=("--nnodes", "2", "--spares", "0"), on_event=kill_each)
    assert finished.code == 1
    assert "the coordinator was ended by signal 9, for the 4th time within 60 s; the job stops" in finished.stderr
