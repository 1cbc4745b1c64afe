"""What every injector promises, on a real process: the right one is hit, the receipt is true, it can be taken back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from chaos.errors import TargetGone
from chaos.faults import PlannedFault
from chaos.injectors import INJECTORS, Active, Injector, Pending
from chaos.procfs import process_stat, start_ticks
from chaos.roster import WorkerInfo, WorkerState
from tests.support import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and is ended whatever the test made of it."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(params=sorted(INJECTORS))
def injector(request: pytest.FixtureRequest) -> Injector:
    return INJECTORS[request.param]


def worker_of(process: subprocess.Popen[bytes]) -> WorkerInfo:
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return WorkerInfo(
        worker="w3", node="n3", pid=process.pid, start_ticks=ticks, state=WorkerState.ACTIVE, rank=3, since=0
    )


def planned(injector: Injector) -> PlannedFault:
    return PlannedFault.from_json({"id": "f", "kind": injector.kind.kind, "target": {"rank": 3}})


def inject(injector: Injector, fault: PlannedFault, worker: WorkerInfo) -> Active:
    """These are applied at once: nothing in the process has to come round first."""
    active = injector.inject(fault, worker)
    assert not isinstance(active, Pending)
    return active


def state(process: subprocess.Popen[bytes]) -> str:
    stat = process_stat(process.pid)
    return stat.state if stat else "gone"


def test_the_receipt_tells_who_when_and_how(injector: Injector, victim: subprocess.Popen[bytes]) -> None:
    fault, before = planned(injector), time.monotonic_ns()
    active = inject(injector, fault, worker_of(victim))
    receipt = active.injection
    assert before <= receipt.at <= time.monotonic_ns()
    assert (receipt.worker, receipt.rank, receipt.node, receipt.pid) == ("w3", 3, "n3", victim.pid)
    assert (receipt.fault, receipt.kind, receipt.fidelity) == ("f", injector.kind.kind, injector.kind.fidelity)
    assert (active.ttl_s is not None) == injector.kind.lasting
    wait_until(lambda: state(victim) in "ZTX", "the fault shows on the process")
    active.revert()
    active.close()


def test_a_process_that_has_ended_is_gone(injector: Injector, victim: subprocess.Popen[bytes]) -> None:
    worker = worker_of(victim)
    victim.kill()
    wait_until(lambda: state(victim) == "Z", "the process is a zombie")
    with pytest.raises(TargetGone, match="w3"):
        inject(injector, planned(injector), worker)
    victim.wait()
    with pytest.raises(TargetGone, match="w3"):
        inject(injector, planned(injector), worker)


def test_a_recycled_pid_is_never_hit(injector: Injector, victim: subprocess.Popen[bytes]) -> None:
    impostor = replace(worker_of(victim), start_ticks=1)
    with pytest.raises(TargetGone, match="another process"):
        inject(injector, planned(injector), impostor)
    assert victim.poll() is None
    assert state(victim) in "SR"


def test_reverting_twice_and_after_the_end_is_harmless(injector: Injector, victim: subprocess.Popen[bytes]) -> None:
    active = inject(injector, planned(injector), worker_of(victim))
    wait_until(lambda: state(victim) in "ZTX", "the fault shows on the process")
    assert active.revert().alive == injector.kind.lasting
    victim.kill()
    victim.wait()
    assert not active.revert().alive


def test_no_descriptor_is_left(injector: Injector, victim: subprocess.Popen[bytes]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    active = inject(injector, planned(injector), worker_of(victim))
    active.revert()
    assert set(os.listdir("/proc/self/fd")) <= before | {"."}


def test_a_stopped_process_goes_on_when_reverted(victim: subprocess.Popen[bytes]) -> None:
    injector = INJECTORS["process_stop"]
    active = inject(injector, planned(injector), worker_of(victim))
    wait_until(lambda: state(victim) == "T", "it stands still")
    assert active.revert().alive
    wait_until(lambda: state(victim) == "S", "it goes on")


def test_a_stopped_process_that_was_killed_meanwhile_cannot_be_resumed(victim: subprocess.Popen[bytes]) -> None:
    injector = INJECTORS["process_stop"]
    active = inject(injector, planned(injector), worker_of(victim))
    victim.send_signal(signal.SIGKILL)
    wait_until(lambda: state(victim) == "Z", "it has ended")
    assert not active.revert().alive
