"""Signals to processes, each through a pidfd, so that a recycled pid can never be hit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from chaos.errors import TargetGone
from chaos.faultkind import FaultKind
from chaos.faults import PlannedFault
from chaos.injectors.base import Active, Reverted, receipt
from chaos.injectors.claims import SIGNALS, Claim
from chaos.kinds_process import PROCESS_KILL, PROCESS_STOP, PROCESS_TERMINATE
from chaos.procfs import all_processes, process_stat, start_ticks
from chaos.roster import WorkerInfo

SEVERAL: Final = "processes"
"""What a receipt's proof has where a fault hit more than the process that it names: how many."""


class ProcessKill:
    """SIGKILL. Of a node all processes are stopped before the first is killed: none sees another one end."""

    kind: Final[FaultKind] = PROCESS_KILL

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        numbers = (signal.SIGSTOP, signal.SIGKILL) if worker.others else (signal.SIGKILL,)
        return _Signalled(self.kind, fault, worker, numbers, ttl_s=None)


class ProcessStop:
    """SIGSTOP, and SIGCONT when reverted."""

    kind: Final[FaultKind] = PROCESS_STOP

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        ttl_s = float(str(fault.params["ttl_s"]))
        return _Signalled(self.kind, fault, worker, (signal.SIGSTOP,), ttl_s=ttl_s, reverted_by=signal.SIGCONT)


class ProcessTerminate:
    """SIGTERM, and SIGKILL after the grace; who is reverted before is spared it, though not told to stay."""

    kind: Final[FaultKind] = PROCESS_TERMINATE

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        grace_s = float(str(fault.params["ttl_s"]))
        return _Signalled(self.kind, fault, worker, (signal.SIGTERM,), ttl_s=grace_s, reverted_by=signal.SIGKILL)


class _Signalled:
    """Signals that were sent. A lasting fault keeps the pidfds: they are the only safe way to send the last one."""

    def __init__(
        self,
        kind: FaultKind,
        fault: PlannedFault,
        worker: WorkerInfo,
        numbers: Sequence[signal.Signals],
        *,
        ttl_s: float | None,
        reverted_by: signal.Signals | None = None,
    ) -> None:
        self.ttl_s = ttl_s
        self._reverted_by = reverted_by
        self._pidfds: list[int] = []
        self._claim = Claim(fault.id, (worker, *worker.others))
        if reverted_by is signal.SIGCONT:
            self._claim.by(SIGNALS)
        try:
            self._pidfds += _open_all(worker)
            at = time.monotonic_ns()
            for number in numbers:
                self._send(number)
        except ProcessLookupError as error:
            self.close()
            raise TargetGone(f"{worker.worker} (pid {worker.pid}) has ended") from error
        except TargetGone:
            self.close()
            raise
        # Which processes they were is news only where the target was more than one.
        proof = {SEVERAL: len(self._pidfds)} if worker.others else None
        self.injection = receipt(fault, kind, worker, at, proof)
        self._ends_at = at + round((ttl_s or 0.0) * 1e9)
        if ttl_s is None:
            self.close()

    @property
    def over(self) -> str:
        ended = self._reverted_by is signal.SIGKILL and not self._living()
        return "it ended within the grace" if ended else ""

    def revert(self) -> Reverted:
        if not self._pidfds or self._reverted_by is None:
            return Reverted(alive=False)
        living = self._living()
        spared = self._reverted_by is signal.SIGKILL and time.monotonic_ns() < self._ends_at
        if not spared:
            with contextlib.suppress(ProcessLookupError):
                self._send(self._reverted_by)
        self.close()
        if self._reverted_by is signal.SIGKILL:
            killed = 0 if spared else len(living)
            return Reverted(alive=bool(living) and spared, proof={"killed_after_grace": killed})
        stat = process_stat(self.injection.pid)
        return Reverted(alive=bool(living) and stat is not None and not stat.ended)

    def close(self) -> None:
        self._claim.release()
        while self._pidfds:
            os.close(self._pidfds.pop())

    def _send(self, number: signal.Signals) -> None:
        """To all; raises ProcessLookupError where the first, which the receipt names, has ended."""
        signal.pidfd_send_signal(self._pidfds[0], number)
        for pidfd in self._pidfds[1:]:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)

    def _living(self) -> list[int]:
        """A pidfd is readable once its process has ended, a zombie included."""
        ended = select.select(self._pidfds, [], [], 0)[0] if self._pidfds else []
        return [pidfd for pidfd in self._pidfds if pidfd not in ended]


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


def _open_all(worker: WorkerInfo) -> list[int]:
    """Pidfds of the worker and, where it stands for its node, of the others there and of all that they have started."""
    pidfds = [open_identified(worker)]
    for other in (*worker.others, *(_below(worker) if worker.others else ())):
        with contextlib.suppress(TargetGone):
            pidfds.append(open_identified(other))
    return pidfds


def _below(worker: WorkerInfo) -> list[WorkerInfo]:
    """What the processes of this node have started, and still lives."""
    known = {worker.pid, *(other.pid for other in worker.others)}
    heads, found = set(known), []
    processes = all_processes()
    while heads:
        children = [stat for stat in processes if stat.parent in heads and stat.pid not in known and not stat.ended]
        found += [
            replace(worker, worker=stat.name, pid=stat.pid, start_ticks=stat.start_ticks, others=())
            for stat in children
        ]
        heads = {stat.pid for stat in children}
        known |= heads
    return found
