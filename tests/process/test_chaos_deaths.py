"""The harness itself is killed: whatever it had started, stopped or opened is gone again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos import cgroups
from chaos.procfs import all_processes, process_stat
from chaos.record import TrialDirectory
from chaos.scenario import Scenario
from phoenix_core.events import Event, read_events
from tests.support import wait_until

pytestmark = pytest.mark.process


@contextmanager
def detached_trial(run_dir: Path, **changes: Any) -> Iterator[tuple[TrialDirectory, subprocess.Popen[str]]]:
    """A trial as the service starts it: `python -m chaos.trial run DIR` in a session of its own."""
    document = {"name": "x", "workload": "gpt-tiny", "steps": 100_000, "runtime": "fake", "timeout_s": 60, **changes}
    directory = TrialDirectory.create(run_dir / "trial", Scenario.from_json(document))
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.trial", "run", os.fspath(directory.path)],
        env={**os.environ, "PHOENIX_RUNTIMES": "tests.contract.fake_runtime:FAKE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield directory, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def seen(directory: TrialDirectory, kind: str) -> list[Event]:
    if not directory.run.events.exists():
        return []
    return [event for event in read_events(directory.run.events) if event.kind == kind]


def of_the_runtime(directory: TrialDirectory) -> list[str]:
    """Processes whose command line names this trial: warden, launcher, workers."""
    found = []
    for stat in all_processes():
        try:
            line = Path(f"/proc/{stat.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(directory.path) in line and not stat.ended:
            found.append(f"{stat.pid} {stat.state} {line!r}")
    return found


def committed(directory: TrialDirectory, step: int) -> bool:
    return any((event.step or 0) >= step for event in seen(directory, "step_committed"))


def warden_of(trial: int) -> int:
    return next(stat.pid for stat in all_processes() if stat.parent == trial)


def test_kill_9_of_the_trial_leaves_nothing(run_dir: Path) -> None:
    with detached_trial(run_dir) as (directory, process):
        wait_until(lambda: committed(directory, 3), "the job trains")
        assert directory.is_alive()
        assert len(of_the_runtime(directory)) >= 6
        process.kill()
        process.wait()
        wait_until(lambda: not of_the_runtime(directory), "everything of the trial ends", deadline_s=5)
        assert not directory.is_alive()
        assert directory.read_result() is None


def test_kill_9_of_the_trial_ends_a_frozen_worker_too(run_dir: Path) -> None:
    # Nobody misses a frozen spare, so it is still frozen when the trial dies.
    stop = {"kind": "process_stop", "target": {"spare": True}, "trigger": {"at_step": 5}}
    with detached_trial(run_dir, faults=[stop]) as (directory, process):
        (receipt,) = wait_until(lambda: seen(directory, "fault_injected"), "a worker is frozen")
        pid = int(str(receipt.data["pid"]))
        frozen = process_stat(pid)
        assert frozen is not None and frozen.state == "T"
        process.kill()
        process.wait()
        wait_until(lambda: not of_the_runtime(directory), "everything of the trial ends", deadline_s=5)
        stat = process_stat(pid)
        assert stat is None or stat.ended or stat.start_ticks != frozen.start_ticks


@pytest.mark.skipif(bool(cgroups.trouble("cpu")), reason=cgroups.trouble("cpu"))
def test_kill_9_of_the_trial_removes_its_control_groups(run_dir: Path) -> None:
    throttle = {"kind": "cpu_throttle", "target": {"rank": 1}, "trigger": {"at_step": 3}, "params": {"share": 0.5}}
    with detached_trial(run_dir, faults=[throttle]) as (directory, process):
        (receipt,) = wait_until(lambda: seen(directory, "fault_injected"), "a worker is throttled")
        place = Path(f"/proc/{receipt.data['pid']}/cgroup").read_text()
        assert f"/phoenix-{process.pid}-" in place
        process.kill()
        process.wait()
        wait_until(lambda: not of_the_runtime(directory), "everything of the trial ends", deadline_s=5)
        left = f"*/phoenix-{process.pid}-*"
        wait_until(lambda: not list(Path("/sys/fs/cgroup").glob(left)), "its control group is removed", deadline_s=5)


def test_kill_9_of_the_warden_ends_the_job_and_is_told(run_dir: Path) -> None:
    with detached_trial(run_dir) as (directory, process):
        wait_until(lambda: committed(directory, 3), "the job trains")
        os.kill(warden_of(process.pid), signal.SIGKILL)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 3, output
        result = directory.read_result()
        assert result is not None and result.verdict == "UNKNOWN"
        assert result.error is not None and "was killed" in result.error
        assert of_the_runtime(directory) == []


def test_kill_9_of_the_warden_says_nothing_about_the_runtime_while_a_fault_lasts_either(run_dir: Path) -> None:
    throttle = {"kind": "cpu_throttle", "target": {"rank": 1}, "trigger": {"at_step": 3}, "params": {"share": 0.9}}
    with detached_trial(run_dir, faults=[throttle]) as (directory, process):
        wait_until(lambda: seen(directory, "fault_injected"), "a worker is throttled")
        os.kill(warden_of(process.pid), signal.SIGKILL)
        output, _ = process.communicate(timeout=20)
        result = directory.read_result()
        assert result is not None and (result.verdict, process.returncode) == ("UNKNOWN", 3), output


def test_kill_9_of_trial_and_warden_at_once(run_dir: Path) -> None:
    with detached_trial(run_dir) as (directory, process):
        wait_until(lambda: committed(directory, 3), "the job trains")
        for pid in (warden_of(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not of_the_runtime(directory), "the launcher ends by its parent-death signal", deadline_s=5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_trial_in_order(run_dir: Path, number: signal.Signals) -> None:
    with detached_trial(run_dir) as (directory, process):
        wait_until(lambda: committed(directory, 3), "the job trains")
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
        assert process.returncode == 130, output
        assert "interrupted" in output and errors.startswith("python -m chaos.trial: interrupted")
        result = json.loads(directory.result_file.read_text())
        assert (result["verdict"], result["error"]) == ("UNKNOWN", "interrupted")
        assert of_the_runtime(directory) == []


def test_exit_codes_and_output(run_dir: Path) -> None:
    kill = {"kind": "process_kill", "target": {"rank": 1}, "trigger": {"at_step": 5}}
    with detached_trial(run_dir / "a", faults=[kill], steps=20) as (_, process):
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, ""), output
        assert output.startswith("PASS")
    with detached_trial(run_dir / "b", faults=[kill], steps=20, cluster={"spares": 0}) as (_, process):
        assert process.wait(timeout=20) == 1
    with detached_trial(run_dir / "c", runtime="nobody", steps=20) as (_, process):
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 2
        assert errors.startswith("python -m chaos.trial: runtime: unknown runtime 'nobody'")
        assert "Traceback" not in errors
