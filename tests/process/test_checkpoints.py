"""The disk as the last resort: every copy in memory lost at once, or the whole job gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from phoenix_core import checkpoint
from phoenix_core.events import Event, read_events
from tests.process.job import SMALL, Finished, Watched, launch, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LAYOUTS = Path(__file__).parent / "scripts" / "layouts.py"
STEPS = 40
ARGUMENTS = {"replicated": (), "sharded": ("--layout", "fsdp")}
SCRIPTS = {"replicated": SMALL, "sharded": LAYOUTS}


def flags(directory: Path, *more: str) -> list[str]:
    return ["--nnodes", "2", "--checkpoint-dir", str(directory), "--checkpoint-every", "5", *more]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    return {kind: trained(tmp_path_factory.mktemp(kind), kind, "--nnodes", "2", "--spares", "0") for kind in SCRIPTS}


def trained(
    run_dir: Path, kind: str, *flags: str, on_event: Callable[[Event, Watched], None] | None = None
) -> Finished:
    arguments = ("--steps", str(STEPS), *ARGUMENTS[kind])
    finished = run(run_dir, *arguments, flags=flags, on_event=on_event, script=SCRIPTS[kind])
    assert finished.code == 0, finished.stderr
    return finished


class KillAll:
    """SIGKILL to every rank at once, when rank 0 commits a step and `complete` checkpoints are there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.struck_at: int | None = None

    def __call__(self, event: Event, watched: Watched) -> None:
        committed = event.kind == "step_committed" and event.rank == 0 and event.step is not None
        if self.struck_at is None and committed and checkpoint.newest(self.directory).boundary is not None:
            self.struck_at = event.step
            for worker in watched.ranks:
                os.kill(watched.pids[worker], signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.parametrize("kind", SCRIPTS)
def test_all_ranks_lost_at_once_go_on_from_the_disk(
    run_dir: Path, tmp_path: Path, twins: dict[str, Finished], kind: str
) -> None:
    kill_all = KillAll(tmp_path / "disk")
    finished = trained(run_dir, kind, *flags(tmp_path / "disk", "--spares", "1"), on_event=kill_all)
    assert kill_all.struck_at is not None
    sources = [event.data["source"] for event in finished.events if event.kind == "state_restored"]
    assert sources.count("disk") >= 2
    assert finished.losses == twins[kind].losses
    assert finished.digests == twins[kind].digests and finished.buffers == twins[kind].buffers


def test_without_a_checkpoint_the_loss_of_everything_is_named(run_dir: Path, tmp_path: Path) -> None:
    def kill_all(event: Event, watched: Watched) -> None:
        if event.kind == "step_committed" and event.rank == 0 and event.step == 3:
            for worker in watched.ranks:
                os.kill(watched.pids[worker], signal.SIGKILL)

    finished = run(run_dir, "--steps", str(STEPS), flags=("--nnodes", "2", "--spares", "2"), on_event=kill_all)
    assert finished.code == 1
    assert "no step is left to resume from" in finished.stderr and "--checkpoint-dir" in finished.stderr


@pytest.mark.soak
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_new_job_begins_where_the_old_one_had_come_to(
    run_dir: Path, tmp_path: Path, twins: dict[str, Finished], kind: str
) -> None:
    disk = tmp_path / "disk"
    arguments = ("--steps", str(STEPS), *ARGUMENTS[kind])
    first = launch(tmp_path / "first", *arguments, flags=flags(disk, "--spares", "0"), script=SCRIPTS[kind])
    while checkpoint.newest(disk).boundary is None:
        assert first.poll() is None, first.communicate()[1]
    first.send_signal(signal.SIGTERM)
    first.communicate()
    before = Finished(0, "", read_events(tmp_path / "first" / "events"))
    finished = trained(run_dir, kind, *flags(disk, "--spares", "0"))
    assert "begins from the checkpoint of step" in finished.stderr
    assert min(step for _, step in finished.losses) >= 5
    assert {**before.losses, **finished.losses} == twins[kind].losses
    assert finished.digests == twins[kind].digests and finished.buffers == twins[kind].buffers
    if kind == "replicated":  # and one more finds that all is done
        again = run(tmp_path / "again", "--steps", str(STEPS), flags=flags(disk, "--spares", "0"))
        assert again.code == 0 and not again.losses and again.digests == twins[kind].digests
        fewer = run(tmp_path / "fewer", "--steps", "30", flags=flags(disk, "--spares", "0"))
        assert fewer.code == 1 and f"is of step {STEPS}, but steps(30) ends before" in fewer.stderr
        assert "takes over" not in fewer.stderr  # each replacement would find the same


def test_a_checkpoint_of_another_world_is_refused(run_dir: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    part = checkpoint.Part(boundary=5, rank=0, world_size=1, directory="rank-0.w0", files={})
    (checkpoint.step_directory(disk, 5) / "rank-0.w0").mkdir(parents=True)
    checkpoint.commit(disk, part)
    finished = run(run_dir, flags=flags(disk))
    assert finished.code == 2
    assert "is of 1 ranks, this job has 2" in finished.stderr
