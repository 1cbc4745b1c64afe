"""What every injector promises, on a real process: the right one is hit, the receipt is true, it can be taken back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import cgroups
from chaos.errors import TargetGone
from chaos.faults import PlannedFault
from chaos.injectors import INJECTORS, Active, Injector, Pending, limits
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


def shows(injector: Injector, process: subprocess.Popen[bytes]) -> bool:
    """Whether the fault can be seen on the process, by what the kernel says of it."""
    match injector.kind.kind:
        case "process_oom":
            return "memory:/" in cgroup(process) and "/phoenix-" in cgroup(process).partition("memory:")[2].split()[0]
        case "cpu_throttle":
            return any("cpu" in line and "/phoenix-" in line for line in cgroup(process).splitlines())
    return state(process) in "ZTX"


def cgroup(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/cgroup").read_text()


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
    wait_until(lambda: shows(injector, victim), "the fault shows on the process")
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
    wait_until(lambda: shows(injector, victim), "the fault shows on the process")
    assert active.revert().alive == (injector.kind.kind in ("process_stop", "process_oom", "cpu_throttle"))
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


def test_a_node_is_killed_with_all_that_its_processes_have_started(victim: subprocess.Popen[bytes]) -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=-1, stdout=-1) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        whole = replace(worker_of(victim), others=(worker_of(parent),))
        active = inject(INJECTORS["process_kill"], planned(INJECTORS["process_kill"]), whole)
        assert active.injection.proof == {"processes": 3}
        wait_until(lambda: start_ticks(child) is None, "the grandchild is dead")
    assert (victim.wait(), parent.returncode) == (-signal.SIGKILL, -signal.SIGKILL)


def test_who_is_told_to_go_and_does_not_is_killed_when_the_grace_is_over() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    injector = INJECTORS["process_terminate"]
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout is not None and deaf.stdout.readline()
        spared = inject(injector, planned(injector), worker_of(deaf))
        assert spared.over == "" and spared.revert().alive
        fault = replace(planned(injector), params={"ttl_s": 0.1})
        active = inject(injector, fault, worker_of(deaf))
        over = active.injection.at + 100_000_000
        wait_until(lambda: time.monotonic_ns() > over, "the grace is over")
        assert active.over == "" and deaf.poll() is None
        assert active.revert().proof == {"killed_after_grace": 1}
    assert deaf.returncode == -signal.SIGKILL


def test_who_goes_when_told_is_seen_to_have_gone(victim: subprocess.Popen[bytes]) -> None:
    injector = INJECTORS["process_terminate"]
    active = inject(injector, planned(injector), worker_of(victim))
    wait_until(lambda: active.over, "it has gone within the grace")
    assert active.revert().proof == {"killed_after_grace": 0}
    assert victim.wait() == -signal.SIGTERM


@pytest.mark.skipif(bool(cgroups.trouble("memory")), reason=cgroups.trouble("memory"))
def test_the_kernel_kills_who_wants_more_memory_and_counts_it() -> None:
    code = "input(); kept = [bytes([1]) * (1 << 20) for _ in range(200)]; input()"
    injector = INJECTORS["process_oom"]
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE) as hungry:
        active = inject(injector, planned(injector), worker_of(hungry))
        assert hungry.stdin is not None
        hungry.stdin.write(b"\n")
        hungry.stdin.flush()
        assert hungry.wait() == -signal.SIGKILL
    seen = active.revert()
    assert not seen.alive and int(str(seen.proof["oom_kill"])) >= 1
    assert not list(Path("/sys/fs/cgroup").glob(f"**/phoenix-{os.getpid()}-*"))


def test_without_a_control_group_allocations_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "input()\ntry:\n    bytearray(200 << 20)\nexcept MemoryError:\n    raise SystemExit(7)\n"
    monkeypatch.setattr(limits, "_grouped_memory", lambda pid: None)
    injector = INJECTORS["process_oom"]
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE) as hungry:
        active = inject(injector, planned(injector), worker_of(hungry))
        assert active.injection.proof["by"] == "rlimit"
        hungry.communicate(b"\n")
    assert hungry.returncode == 7
    active.revert()


@pytest.mark.parametrize("grouped", [True, False])
def test_a_throttled_process_gets_its_share_of_a_core(monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    if grouped and cgroups.trouble("cpu"):
        pytest.skip(cgroups.trouble("cpu"))
    if not grouped:
        monkeypatch.setattr(limits, "_grouped_cpu", lambda pid, share: None)
    injector = INJECTORS["cpu_throttle"]
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as busy:
        active = inject(injector, planned(injector), worker_of(busy))
        before, started = seconds_of(busy.pid), time.monotonic()
        wait_until(lambda: time.monotonic() > started + 1.0, "a second is over")
        used, passed = seconds_of(busy.pid) - before, time.monotonic() - started
        assert active.revert().alive
        wait_until(lambda: state(busy) == "R", "it goes on")
        busy.kill()
    assert used < 0.5 * passed  # a fifth, and what a loaded machine's clock ticks add to it


def seconds_of(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
