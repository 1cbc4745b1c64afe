"""The runtime with real processes: every recovery must end in the run that had no failure, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phoenix_core.events import Event, read_events
from tests.process.job import SMALL, Finished, Strike, Watched, launch, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

STEPS = 40


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The undisturbed run."""
    finished = run(tmp_path_factory.mktemp("twin"), "--steps", str(STEPS), flags=["--nnodes", "4", "--spares", "0"])
    assert finished.code == 0, finished.stderr
    assert len(finished.losses) == 4 * STEPS and len(set(finished.digests.values())) == 1
    return finished


def assert_same_run(finished: Finished, twin: Finished) -> None:
    assert finished.code == 0, finished.stderr
    assert finished.losses == twin.losses
    assert finished.digests == twin.digests
    assert finished.buffers == twin.buffers


@pytest.mark.parametrize(
    ("rank", "phase"),
    [
        pytest.param(1, "forward", marks=pytest.mark.soak),
        pytest.param(2, "backward", marks=pytest.mark.soak),
        pytest.param(0, "gradient_sync", marks=pytest.mark.soak),
        (3, "optimizer"),
    ],
)
def test_a_kill_in_any_phase_leaves_the_run_bitwise_as_it_was(
    run_dir: Path, twin: Finished, rank: int, phase: str
) -> None:
    finished = run(run_dir, "--steps", str(STEPS), strikes=[Strike(rank=rank, step=10, phase=phase)])
    assert_same_run(finished, twin)
    (recovery,) = finished.recoveries
    assert [failure.rank for failure in recovery.failures] == [rank]
    assert recovery.complete and recovery.lost_steps <= 1
    said = finished.stderr.splitlines()
    assert f"rank {rank} (w{rank} on n{rank}) failed" in said[0]
    assert said[1] == f"phoenix: w4 takes over rank {rank}" and "training goes on from step" in said[2]


@pytest.mark.soak
def test_state_that_the_script_changes_outside_of_the_step_is_exact_too(run_dir: Path) -> None:
    """A scheduler that steps after the block, and random numbers drawn between steps."""
    undisturbed = run(run_dir / "twin", "--steps", "30", "--between", flags=["--nnodes", "4", "--spares", "0"])
    finished = run(run_dir / "run", "--steps", "30", "--between", strikes=[Strike(2, 10, "backward")])
    assert_same_run(finished, undisturbed)


def test_a_frozen_rank_is_found_and_replaced(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), strikes=[Strike(2, 10, "backward", signal.SIGSTOP)])
    assert_same_run(finished, twin)
    (recovery,) = finished.recoveries
    assert recovery.failures[0].cause == "stopped" and recovery.failures[0].rank == 2


@pytest.mark.soak
def test_nobody_is_interrupted_in_a_context_managers_own_code(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), "--switch-at", "10")
    assert_same_run(finished, twin)
    assert [failure.rank for recovery in finished.recoveries for failure in recovery.failures] == [2]
    assert all(event.data["inside"] == 0 for event in finished.events if event.kind == "step_committed")


@pytest.mark.soak
def test_survivors_one_step_apart_meet_at_the_later_step(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), "--step-apart")
    assert_same_run(finished, twin)
    (recovery,) = finished.recoveries
    offered = {e.rank: e.data["boundary"] for e in finished.events if e.kind == "worker_quiesced"}
    assert offered[1] == 10 and offered[0] == 11, "the test did not bring the survivors apart"
    assert recovery.resume_step == 11
    aside = {e.rank: e.data["aside"] for e in finished.events if e.kind == "state_restored"}
    assert aside == {0: False, 1: True, 2: False, 3: False}, "only who has a state keeps it while it fetches another"


@pytest.mark.soak
def test_the_death_of_the_only_rank_ahead_in_mid_transfer_loses_no_state(run_dir: Path, twin: Finished) -> None:
    flags = ["--nnodes", "4", "--spares", "2"]
    finished = run(run_dir, "--steps", str(STEPS), "--alone-ahead", flags=flags)
    assert_same_run(finished, twin)
    offered = {(e.generation, e.rank): e.data["boundary"] for e in finished.events if e.kind == "worker_quiesced"}
    assert offered[2, 0] == 11 and offered[2, 1] == offered[2, 3] == 10, "the test did not bring the survivors apart"
    assert offered[3, 1] == offered[3, 3] == 10, "they were to fetch, and had to keep what they had"
    assert [failure.rank for recovery in finished.recoveries for failure in recovery.failures] == [2, 0]
    assert finished.recoveries[-1].resume_step == 10


def test_a_rank_that_hangs_with_a_beating_heart_is_blamed(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), "--hang-at", "12")
    assert_same_run(finished, twin)
    (recovery,) = finished.recoveries
    assert [(failure.rank, failure.cause) for failure in recovery.failures] == [(1, "no_progress")]


@pytest.mark.soak
def test_a_rank_that_keeps_the_gil_is_found_by_its_silence(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), "--freeze-at", "12")
    assert_same_run(finished, twin)
    (recovery,) = finished.recoveries
    assert [(failure.rank, failure.cause) for failure in recovery.failures] == [(1, "silent")]


@pytest.mark.soak
def test_a_rank_that_dies_after_a_step_without_training_is_replaced(run_dir: Path) -> None:
    arguments = ("--steps", "30", "--skip-at", "10")
    undisturbed = run(run_dir / "twin", *arguments, flags=["--nnodes", "4", "--spares", "0"])
    finished = run(run_dir / "run", *arguments, strikes=[Strike(1, 10, "between")])
    assert_same_run(finished, undisturbed)


@pytest.mark.soak
def test_a_rank_that_saves_between_two_steps_is_not_taken_for_hung(run_dir: Path) -> None:
    finished = run(run_dir, "--steps", "60", "--pause-at", "40", flags=["--nnodes", "2", "--spares", "1"])
    assert finished.code == 0, finished.stderr
    assert not finished.recoveries and "failed" not in finished.stderr


@pytest.mark.soak
def test_a_slow_rank_is_named_and_not_replaced(run_dir: Path) -> None:
    finished = run(run_dir, "--steps", "40", "--slow", flags=["--nnodes", "3", "--spares", "0"])
    assert finished.code == 0 and not finished.recoveries
    (suspected,) = [event for event in finished.events if event.kind == "straggler_suspected"]
    assert suspected.rank == 1 and "rank 1 (w1) is slow" in finished.stderr


def test_without_spares_a_new_worker_is_started(run_dir: Path, twin: Finished) -> None:
    killed: list[int] = []

    def kill_once(event: Event, watched: Watched) -> None:
        if not killed and event.kind == "step_committed" and event.rank == 3 and event.step == 8:
            killed.append(watched.pids[watched.ranks[3]])
            os.kill(killed[0], signal.SIGKILL)

    finished = run(run_dir, "--steps", str(STEPS), flags=["--nnodes", "4", "--spares", "0"], on_event=kill_once)
    assert killed
    assert_same_run(finished, twin)


def test_the_scripts_own_error_ends_the_job_and_is_named(run_dir: Path) -> None:
    finished = run(run_dir, "--raise-at", "4", flags=["--nnodes", "2", "--spares", "1", "--max-restarts", "1"])
    assert finished.code == 1
    assert "ValueError: a deliberate mistake of the script" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_an_error_of_the_device_is_the_failure_of_its_rank(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), "--device-error-at", "12")
    assert_same_run(finished, twin)
    (recovery,) = finished.recoveries
    assert [(failure.rank, failure.cause) for failure in recovery.failures] == [(1, "device_error")]
    (detected,) = [event for event in finished.events if event.kind == "failure_detected"]
    assert detected.data["code"] == 700 and detected.data["action"] == "respawn"
    assert "an illegal memory access was encountered" in finished.stderr
    log = (run_dir / "logs" / "w1.log").read_text()
    assert "Traceback" in log and "CUDA error" in log, "the script's author needs the traceback"


@pytest.mark.soak
def test_a_node_whose_gpu_needs_a_reset_is_not_used_again(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), "--device-error-at", "12", "--code", "214")
    assert_same_run(finished, twin)
    assert "n1 gets no worker any more: a GPU of it needs a reset" in finished.stderr
    assert [event.node for event in finished.events if event.kind == "worker_spawned"].count("n1") == 1


def test_an_interrupted_job_leaves_nothing(run_dir: Path) -> None:
    def interrupt(event: Event, _: Watched) -> None:
        if event.kind == "step_committed" and event.step == 3 and event.rank == 0:
            (launcher,) = [child for child in _children() if "phoenix_core" in _command(child)]
            os.kill(launcher, signal.SIGINT)

    finished = run(run_dir, "--steps", "100000", flags=["--nnodes", "2", "--spares", "1"], on_event=interrupt)
    assert finished.code == 130
    assert "interrupted (Ctrl-C)" in finished.stderr and "SIG" not in finished.stderr


def test_a_script_that_never_trains_is_told_what_is_missing(run_dir: Path) -> None:
    finished = run(run_dir, "--no-loop", flags=["--nnodes", "2", "--spares", "0"])
    assert finished.code == 1
    assert "run its loop over the session's steps()" in finished.stderr


@pytest.mark.soak
def test_a_rank_that_leaves_alone_ends_the_job_and_is_named(run_dir: Path) -> None:
    finished = run(run_dir, "--leave-at", "10", flags=["--nnodes", "3", "--spares", "1"])
    assert finished.code == 1
    assert "rank 1 (w1) left its loop over steps() while the others train on" in finished.stderr


def test_a_directory_that_holds_a_job_is_not_used_again(run_dir: Path) -> None:
    flags = ["--nnodes", "1", "--spares", "0"]
    assert run(run_dir, "--steps", "2", flags=flags).code == 0
    again = run(run_dir, "--steps", "2", flags=flags)
    assert again.code == 2 and "holds the events of an earlier job" in again.stderr


def test_nothing_outlives_a_killed_launcher(run_dir: Path) -> None:
    process = launch(run_dir, "--steps", "100000", flags=["--nnodes", "2", "--spares", "1"])
    while not any(event.kind == "step_committed" for event in read_events(run_dir / "events")):
        assert process.poll() is None
    process.kill()
    process.communicate()  # the leak check after this test finds what is left


def test_the_script_runs_alone_without_a_launcher(run_dir: Path) -> None:
    environment = {**os.environ, "PHOENIX_RUN_DIR": str(run_dir)}
    command = [sys.executable, str(SMALL), "--steps", "5", "--width", "32"]
    subprocess.run(command, check=True, timeout=60, env=environment)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.soak
def test_only_groups_with_a_replaced_rank_or_not_at_rest_are_rebuilt(run_dir: Path, twin: Finished) -> None:
    finished = run(run_dir, "--steps", str(STEPS), "--groups", strikes=[Strike(2, 10, "backward")])
    assert_same_run(finished, twin)
    ready = [event for event in finished.events if event.kind == "communicator_ready" and event.generation == 2]
    assert {event.rank for event in ready} == {0, 1, 2, 3}
    for event in ready:
        built = event.data["built"]
        assert isinstance(built, list)
        kept = {group["group"].rpartition(":")[2]: group["kept"] for group in built}
        # The world's name lists no members. The group of ranks 0 and 3 was never used, so it is at rest.
        assert kept == {"": False, **({"0-3": True} if event.rank in (0, 3) else {"1-2": False})}
        assert all(group["seconds"] >= 0 for group in built) and event.data["kept"] == sum(kept.values())


@pytest.mark.soak
def test_a_static_graph_still_reduces_after_a_recovery(run_dir: Path) -> None:
    undisturbed = run(run_dir / "twin", "--steps", "20", "--static-graph", flags=["--nnodes", "2", "--spares", "0"])
    flags = ["--nnodes", "2", "--spares", "1"]
    finished = run(run_dir / "run", "--steps", "20", "--static-graph", strikes=[Strike(1, 8, "backward")], flags=flags)
    assert_same_run(finished, undisturbed)
