"""No more memory, or little of a core: by a control group, or by what there is where none can be made."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import threading
import time
from pathlib import Path
from typing import Final, Protocol

from chaos import cgroups
from chaos.agent.mailbox import Json, Order, Slot, box_of, send
from chaos.errors import TargetGone
from chaos.faultkind import FaultKind
from chaos.faults import PlannedFault
from chaos.injectors.base import Active, Reverted, receipt
from chaos.injectors.claims import LIMITS, SIGNALS, Claim
from chaos.injectors.process import open_identified
from chaos.kinds_process import CPU_THROTTLE, PROCESS_OOM
from chaos.roster import WorkerInfo

HEADROOM: Final = 16 << 20
"""What a process may still get once it is limited: it must be able to say its last words."""
PERIOD_US: Final = 100_000
CYCLE_S: Final = 0.04


class _Limit(Protocol):
    """Something that holds a process back until it is lifted."""

    proof: Json

    def lift(self) -> Json:
        """Take it back; what was seen of it."""


class ProcessOom:
    """Limits memory, and has the agent of the process, where there is one, ask for more."""

    kind: Final[FaultKind] = PROCESS_OOM

    def __init__(self, boxes: Path | None = None) -> None:
        self._boxes = boxes

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        claim = Claim(fault.id, [worker]).by(LIMITS)
        pidfd = _opened(worker, claim)
        at = time.monotonic_ns()
        limit: _Limit | None = _grouped_memory(worker.pid) or _limited_space(worker.pid)
        if limit is None:
            os.close(pidfd)
            claim.release()
            raise TargetGone(f"{worker.worker} (pid {worker.pid}) has ended")
        eaten = None
        if self._boxes is not None and isinstance(limit, _MemoryGroup):
            order = Order(act="eat", params={"bytes": 4 * HEADROOM}, ttl_s=float(str(fault.params["ttl_s"])))
            eaten = send(box_of(self._boxes, worker.pid, worker.start_ticks), order)
        return _Limited(self.kind, fault, worker, pidfd, at, limit, claim, eaten)


class CpuThrottle:
    """A share of one core."""

    kind: Final[FaultKind] = CPU_THROTTLE

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        claim = Claim(fault.id, [worker]).by(LIMITS)
        pidfd, share = _opened(worker, claim), float(str(fault.params["share"]))
        at = time.monotonic_ns()
        limit: _Limit | None = _grouped_cpu(worker.pid, share)
        if limit is None:
            try:
                claim.by(SIGNALS)
            except TargetGone:
                os.close(pidfd)
                raise
            limit = _DutyCycle(pidfd, share)
        return _Limited(self.kind, fault, worker, pidfd, at, limit, claim, None)


def _opened(worker: WorkerInfo, claim: Claim) -> int:
    try:
        return open_identified(worker)
    except TargetGone:
        claim.release()
        raise


class _Limited:
    """A process that is held back."""

    over: Final = ""

    def __init__(
        self,
        kind: FaultKind,
        fault: PlannedFault,
        worker: WorkerInfo,
        pidfd: int,
        at: int,
        limit: _Limit,
        claim: Claim,
        eaten: Slot | None,
    ) -> None:
        self.ttl_s = float(str(fault.params["ttl_s"]))
        self.injection = receipt(fault, kind, worker, at, limit.proof)
        self._pidfd, self._limit, self._claim, self._eaten = pidfd, limit, claim, eaten

    def revert(self) -> Reverted:
        if self._pidfd < 0:
            return Reverted(alive=False)
        if self._eaten is not None and not self._eaten.take("withdrawn"):
            self._eaten.release()
        seen = self._limit.lift()
        alive = not select.select([self._pidfd], [], [], 0)[0]
        self.close()
        return Reverted(alive=alive, proof=seen)

    def close(self) -> None:
        self._claim.release()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


# --- memory ----------------------------------------------------------------------------------------------------------


def _grouped_memory(pid: int) -> _MemoryGroup | None:
    with contextlib.suppress(OSError):
        return _MemoryGroup(pid)
    return None


class _MemoryGroup:
    """A control group: what the process has stays with its old one; of new pages there are few, then it is killed."""

    def __init__(self, pid: int) -> None:
        self._group = cgroups.Group("memory", pid)
        try:
            if self._group.version == 1:
                self._group.set("memory.limit_in_bytes", HEADROOM)
                with contextlib.suppress(OSError):  # not every kernel counts swap
                    self._group.set("memory.memsw.limit_in_bytes", HEADROOM)
            else:
                self._group.set("memory.max", HEADROOM)
                with contextlib.suppress(OSError):
                    self._group.set("memory.swap.max", 0)
            self._group.enter()
        except OSError:
            self._group.close()
            raise
        self.proof: Json = {"by": f"cgroup v{self._group.version}", "bytes": HEADROOM}

    def lift(self) -> Json:
        name = "memory.oom_control" if self._group.version == 1 else "memory.events"
        kills = self._group.read(name).get("oom_kill", 0)
        self._group.close()
        return {"oom_kill": kills}


def _limited_space(pid: int) -> _AddressSpace | None:
    with contextlib.suppress(OSError):
        return _AddressSpace(pid)
    return None


class _AddressSpace:
    """A limit of the process's address space: what it has it keeps, what it asks for beyond that it does not get."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + HEADROOM
        self._before = resource.prlimit(pid, resource.RLIMIT_AS)
        hard = self._before[1]
        resource.prlimit(pid, resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
        self.proof: Json = {"by": "rlimit", "bytes": limit}

    def lift(self) -> Json:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._pid, resource.RLIMIT_AS, self._before)
        return {}


# --- processor -------------------------------------------------------------------------------------------------------


def _grouped_cpu(pid: int, share: float) -> _CpuGroup | None:
    with contextlib.suppress(OSError):
        return _CpuGroup(pid, share)
    return None


class _CpuGroup:
    """A quota of processor time in each tenth of a second."""

    def __init__(self, pid: int, share: float) -> None:
        self._group = cgroups.Group("cpu", pid)
        quota = round(PERIOD_US * share)
        try:
            if self._group.version == 1:
                self._group.set("cpu.cfs_period_us", PERIOD_US)
                self._group.set("cpu.cfs_quota_us", quota)
            else:
                self._group.set("cpu.max", f"{quota} {PERIOD_US}")
            self._group.enter()
        except OSError:
            self._group.close()
            raise
        self.proof: Json = {"by": f"cgroup v{self._group.version}", "share": share}

    def lift(self) -> Json:
        seen = self._group.read("cpu.stat")
        self._group.close()
        names = ("nr_periods", "nr_throttled", "throttled_time", "throttled_usec")
        return {name: seen[name] for name in names if name in seen}


class _DutyCycle:
    """SIGSTOP for most of each cycle. Should the trial be killed meanwhile, its warden resumes everything."""

    def __init__(self, pidfd: int, share: float) -> None:
        self._pidfd, self._share = pidfd, share
        self._over = threading.Event()
        self._cycles = 0
        self.proof: Json = {"by": "SIGSTOP and SIGCONT", "share": share}
        self._thread = threading.Thread(target=self._turn, name="chaos-throttle", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            while not self._over.is_set():
                signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
                self._over.wait(CYCLE_S * (1 - self._share))
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
                self._over.wait(CYCLE_S * self._share)
                self._cycles += 1

    def lift(self) -> Json:
        self._over.set()
        self._thread.join()
        return {"cycles": self._cycles}
