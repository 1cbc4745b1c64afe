"""Kill and freeze a process, through a pidfd, so that a recycled pid can never be hit."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from chaos.errors import TargetGone
from chaos.faults import PlannedFault
from chaos.injectors.base import Active, Reverted, receipt
from chaos.kinds import PROCESS_KILL, PROCESS_STOP, FaultKind
from chaos.procfs import process_stat, start_ticks
from chaos.roster import WorkerInfo


class ProcessKill:
    """SIGKILL."""

    kind: Final[FaultKind] = PROCESS_KILL

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        return _Signalled(fault, worker, signal.SIGKILL, ttl_s=None)


class ProcessStop:
    """SIGSTOP, and SIGCONT when reverted."""

    kind: Final[FaultKind] = PROCESS_STOP

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        return _Signalled(fault, worker, signal.SIGSTOP, ttl_s=float(str(fault.params["ttl_s"])))


class _Signalled:
    """A signal that was sent. A lasting one keeps the pidfd: it is the only safe way to send SIGCONT later."""

    over: Final = ""

    def __init__(self, fault: PlannedFault, worker: WorkerInfo, number: signal.Signals, *, ttl_s: float | None) -> None:
        self.ttl_s = ttl_s
        self._pidfd = open_identified(worker)
        kind = PROCESS_KILL if number is signal.SIGKILL else PROCESS_STOP
        try:
            at = time.monotonic_ns()
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError as error:
            self.close()
            raise TargetGone(f"{worker.worker} (pid {worker.pid}) has ended") from error
        self.injection = receipt(fault, kind, worker, at)
        if ttl_s is None:
            self.close()

    def revert(self) -> Reverted:
        if self._pidfd < 0:
            return Reverted(alive=False)
        stat = process_stat(self.injection.pid)
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
            alive = stat is not None and not stat.ended  # a zombie takes the signal, but nobody is resumed
        except ProcessLookupError:
            alive = False
        self.close()
        return Reverted(alive=alive)

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def open_identified(worker: WorkerInfo) -> int:
    """A pidfd of exactly this worker's process. The order matters: once the descriptor is open, the pid that it
    stands for cannot change, so a start time that matches now is the start time of what will be signalled."""
    gone = f"{worker.worker} (pid {worker.pid}) has ended"
    try:
        pidfd = os.pidfd_open(worker.pid)
    except ProcessLookupError as error:
        raise TargetGone(gone) from error
    ticks = start_ticks(worker.pid)
    if ticks != worker.start_ticks:
        os.close(pidfd)
        raise TargetGone(gone if ticks is None else f"{gone}; its pid belongs to another process now")
    return pidfd
