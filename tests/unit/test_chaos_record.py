"""The trial directory: documents survive the way to disk and back, and every failure names the path."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from chaos import leaks, record
from chaos.errors import TrialError
from chaos.failures import explain, last_lines
from chaos.leaks import Footprint, LeakReport, find_leaks, footprint
from chaos.procfs import process_stat, start_ticks
from chaos.record import PartDirectory, Result, TrialDirectory, utc_now
from chaos.scenario import Scenario
from chaos.verdict import CheckResult, Verdict
from phoenix_core.events import Event

SCENARIO = Scenario(name="x", workload="gpt-tiny", steps=3, seed=9)
RESULT = Result(
    verdict=Verdict.UNKNOWN,
    checks={"fired": CheckResult(verdict=Verdict.UNKNOWN, detail="missed")},
    recoveries=(),
    steps_committed=2,
    error="interrupted",
    finished_at=utc_now(),
)


def test_specification_and_result_survive(tmp_path: Path) -> None:
    directory = TrialDirectory.create(tmp_path / "t1", SCENARIO, trial="id-1")
    spec = directory.read_spec()
    assert (spec.trial, spec.scenario) == ("id-1", SCENARIO)
    raw = json.loads(directory.spec_file.read_text())
    assert raw["seed"] == 9
    assert {"commit", "dirty", "versions", "created_at"} <= set(raw)
    assert directory.read_result() is None
    directory.write_result(RESULT)
    assert directory.read_result() == RESULT
    assert [path.name for path in directory.path.iterdir() if path.name.startswith(".")] == []


def test_a_directory_holds_one_trial(tmp_path: Path) -> None:
    TrialDirectory.create(tmp_path / "t1", SCENARIO)
    with pytest.raises(TrialError, match="already holds a trial"):
        TrialDirectory.create(tmp_path / "t1", SCENARIO)


def test_of_two_at_once_one_gets_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second would write its scenario over the first one's, which would then run and be judged by that."""
    begun, tried, write, lock = threading.Event(), threading.Event(), record.write_atomically, fcntl.flock
    asked = threading.Semaphore(0)

    def counted(descriptor: int, operation: int) -> None:
        asked.release()
        lock(descriptor, operation)

    def slowly(path: Path, data: Mapping[str, object]) -> None:
        begun.set()
        assert all(asked.acquire(timeout=10) for _ in range(2)), "the other one has come, and waits"
        write(path, data)

    def own() -> None:
        with TrialDirectory(tmp_path / "t1").owned():
            assert tried.wait(10)

    monkeypatch.setattr(record, "write_atomically", slowly)
    monkeypatch.setattr("fcntl.flock", counted)
    with ThreadPoolExecutor() as pool:
        for first, message in ((None, "already holds a trial"), (own, "already being run")):
            begun.clear()
            tried.clear()
            create = partial(TrialDirectory.create, tmp_path / "t1", SCENARIO)
            running = pool.submit(first or create)
            assert begun.wait(10)
            with pytest.raises(TrialError, match=message):
                (first or create)()
            tried.set()
            running.result()


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrialError, match=r"cannot write .*/file/t1: Not a directory"):
        TrialDirectory.create(tmp_path / "file" / "t1", SCENARIO)
    directory = TrialDirectory.create(tmp_path / "t1", SCENARIO)
    directory.result_file.mkdir()
    with pytest.raises(TrialError, match=r"cannot write .*result.json"):
        directory.write_result(RESULT)
    assert sorted(path.name for path in directory.path.iterdir()) == ["result.json", "spec.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trial": "x", "scenario": {}, "created_at": ""}', "\x00"])
def test_what_is_no_specification_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(TrialError, match=r"spec\.json"):
        TrialDirectory(tmp_path).read_spec()
    with pytest.raises(TrialError, match="no trial directory"):
        TrialDirectory(tmp_path / "empty").read_spec()


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"verdict": "GREAT"}')
    with pytest.raises(TrialError, match=r"result\.json"):
        TrialDirectory(tmp_path).read_result()


def test_the_pid_file_names_a_process_not_a_number(tmp_path: Path) -> None:
    directory = TrialDirectory.create(tmp_path / "t1", SCENARIO)
    assert not directory.is_alive()
    with directory.owned():
        assert directory.is_alive()
        with pytest.raises(TrialError, match="already being run"), directory.owned():
            pass
    assert not directory.pid_file.exists()
    directory.pid_file.write_text(json.dumps({"pid": os.getpid(), "start_ticks": 1}))
    assert not directory.is_alive()  # the same number, but another process


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = process_stat(child.pid)
    assert stat is not None and stat.ended
    assert start_ticks(child.pid) is None
    child.wait()
    assert process_stat(child.pid) is None


def test_the_culprits_log_is_quoted(tmp_path: Path) -> None:
    part = PartDirectory(path=tmp_path)
    part.logs.mkdir()
    (part.logs / "launcher.log").write_text("phoenix: rank 1 ended\n")
    (part.logs / "w1.log").write_text("".join(f"line {index}\n" for index in range(100)) + "ValueError: bad shape\n")
    (part.logs / "w0.log").write_text("killed in the middle\n")
    events = [
        Event(kind="fault_injected", at=0, worker="w0", data={"fault": "f"}),
        Event(kind="worker_exited", at=1, worker="w0", data={"code": -9}),
        Event(kind="worker_exited", at=2, worker="w1", data={"code": 1}),
        Event(kind="job_finished", at=3, data={"outcome": "failed", "reason": "w1 ended before it was ready"}),
    ]
    text = explain(part, events, 1)
    assert "exit code 1" in text and "w1 ended before it was ready" in text
    assert "last lines of w1.log" in text and text.endswith("ValueError: bad shape")
    assert "line 84" not in text
    assert "phoenix: rank 1 ended" in explain(part, events[:2], -11)
    assert "SIGSEGV" in explain(part, events[:2], -11)
    assert "was killed" in explain(part, events, None)
    assert last_lines(tmp_path / "missing") == ""


KINDS = ("shared_memory", "namespaces", "mounts", "cgroups", "files")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_counts_as_ours_by_a_pid_of_ours_and_not_if_it_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def seen(*names: str) -> Footprint:
        return Footprint(**{one: frozenset(names if one == kind else ()) for one in KINDS})

    before = seen("phoenix-41-old")
    monkeypatch.setattr(leaks, "footprint", lambda: seen("phoenix-41-old", "phoenix-41-new", "phoenix-42-new", "410"))
    report = find_leaks(directory=tmp_path, processes=(), pids=[41], before=before)
    assert getattr(report, kind) == ("phoenix-41-new",)
    assert len(report.everything) == 1
    both = report | LeakReport(sockets=("/x/agent.sock",))
    assert both.everything[0].endswith("phoenix-41-new") or both.everything[1].endswith("phoenix-41-new")
    assert len(both.everything) == 2


def test_a_footprint_sees_what_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHARED_MEMORY", "NAMED_NAMESPACES", "CGROUPS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(leaks, name, tmp_path / name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = footprint()
    (tmp_path / "SHARED_MEMORY" / "torch_41_7").touch()
    (tmp_path / "NAMED_NAMESPACES" / "n-41").touch()
    (tmp_path / "CGROUPS" / "cpu" / "phoenix-41-1-1").mkdir(parents=True)
    (tmp_path / "phoenix-41.lock").touch()
    with open("/proc/self/ns/net"):
        report = find_leaks(directory=tmp_path, processes=(), pids=[41], before=before)
    assert [name for name in report.everything if not name.startswith("namespace net:[")] == [
        "shared memory torch_41_7", "namespace n-41", "control group cpu/phoenix-41-1-1", "file phoenix-41.lock",
    ]  # fmt: skip
    assert any(name.startswith("net:[") for name in report.namespaces)
