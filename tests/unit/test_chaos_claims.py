"""Two lasting faults on one process: the second is missed, where the end of one would undo the other."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator

import pytest

from chaos.errors import TargetGone
from chaos.faults import PlannedFault
from chaos.injectors import limits
from chaos.injectors.limits import CpuThrottle, ProcessOom
from chaos.injectors.process import ProcessKill, ProcessStop
from chaos.procfs import process_stat, start_ticks
from chaos.roster import WorkerInfo
from tests.support import wait_until


@pytest.fixture
def worker() -> Iterator[WorkerInfo]:
    process = subprocess.Popen(["sleep", "600"])
    ticks = start_ticks(process.pid)
    assert ticks is not None
    yield WorkerInfo(worker="w1", node="n1", pid=process.pid, start_ticks=ticks)
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user."""
    monkeypatch.setattr(limits, "_grouped_cpu", lambda *_: None)
    monkeypatch.setattr(limits, "_grouped_memory", lambda *_: None)


def fault(id: str, kind: str) -> PlannedFault:
    return PlannedFault.from_json({"id": id, "kind": kind, "target": {"rank": 1}})


def test_a_limit_is_lifted_to_what_was_before_and_a_second_one_is_missed(worker: WorkerInfo) -> None:
    before = resource.prlimit(worker.pid, resource.RLIMIT_AS)
    held = ProcessOom().inject(fault("a", "process_oom"), worker)
    for injector in (ProcessOom(), CpuThrottle()):
        with pytest.raises(TargetGone, match="a holds w1 by limits already: two at once would undo each other"):
            injector.inject(fault("b", injector.kind.kind), worker)
    held.revert()
    assert resource.prlimit(worker.pid, resource.RLIMIT_AS) == before
    again = ProcessOom().inject(fault("c", "process_oom"), worker)
    again.revert()
    assert resource.prlimit(worker.pid, resource.RLIMIT_AS) == before


def test_who_is_stopped_is_resumed_by_nobody_else(worker: WorkerInfo) -> None:
    stopped = ProcessStop().inject(fault("a", "process_stop"), worker)
    for injector in (ProcessStop(), CpuThrottle()):
        with pytest.raises(TargetGone, match="a holds w1 by signals already"):
            injector.inject(fault("b", injector.kind.kind), worker)
    wait_until(lambda: (stat := process_stat(worker.pid)) is not None and stat.state == "T", "it stands")
    assert stopped.revert().alive
    throttled = CpuThrottle().inject(fault("c", "cpu_throttle"), worker)  # what the refused one held is free again
    with pytest.raises(TargetGone, match="c holds w1 by signals already"):
        ProcessStop().inject(fault("d", "process_stop"), worker)
    ProcessKill().inject(fault("e", "process_kill"), worker)
    throttled.revert()
