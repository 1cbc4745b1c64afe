"""Faults that the process makes in itself: an order to its agent, and what the agent answered."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chaos.agent.mailbox import Json, Order, Slot, box_of, send
from chaos.errors import TargetGone
from chaos.faultkind import FaultKind
from chaos.faults import Injection, PlannedFault
from chaos.injectors.base import Injector, Pending, Reverted, receipt
from chaos.injectors.limits import ProcessOom
from chaos.injectors.process import open_identified
from chaos.kinds_inside import ACTS
from chaos.record import PartDirectory
from chaos.roster import WorkerInfo

LISTEN_S: Final = 10.0
"""How long an order may lie before the process takes it: on a busy machine a thread may wait for the GIL."""
WITHIN_S: Final = 30.0
"""How long a process that has taken it may wait for the instant."""
RELEASE_S: Final = 2.0
POLL_S: Final = 0.001


def inside_injectors(part: PartDirectory, seed: int = 0) -> Mapping[str, Injector]:
    """Those that reach the agents of this part of a trial, or do better with them.

    What a process has to choose, it draws from `seed`, the trial's, and the fault's id.
    """
    told = {"seed": seed, "checkpoints": str(part.checkpoints)}
    injectors: list[Injector] = [InsideFault(kind, act, part.agents, told) for kind, act in ACTS]
    injectors.append(ProcessOom(part.agents))
    return {injector.kind.kind: injector for injector in injectors}


class InsideFault:
    """Tells the agent of the target to do it."""

    def __init__(self, kind: FaultKind, act: str, boxes: Path, told: Json | None = None) -> None:
        """`boxes` are those of the agents; `told` is what they hear beside a fault's own parameters."""
        self.kind = kind
        self._act = act
        self._boxes = boxes
        self._told = told or {}

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Pending:
        pidfd = open_identified(worker)
        ttl_s = float(str(fault.params["ttl_s"])) if self.kind.lasting else None
        # Of kinds that share an act the last word of the name tells them apart.
        how = self.kind.kind.rpartition("_")[2]
        told = {**self._told, "seed": f"{self._told.get('seed')}/{fault.id}", "how": how, **fault.params}
        order = Order(act=self._act, params=told, ttl_s=ttl_s, within_s=WITHIN_S)
        slot = send(box_of(self._boxes, worker.pid, worker.start_ticks), order)
        if slot is None:
            os.close(pidfd)
            raise TargetGone(f"no agent runs in {worker.worker} (pid {worker.pid}): start it by python -m chaos.agent")
        return _Ordered(self.kind, fault, worker, slot, pidfd, ttl_s)


class _Ordered:
    """An order that was sent. It is withdrawn where nobody takes it, and so never happens later than it is recorded."""

    def __init__(
        self, kind: FaultKind, fault: PlannedFault, worker: WorkerInfo, slot: Slot, pidfd: int, ttl_s: float | None
    ) -> None:
        self._kind, self._fault, self._worker = kind, fault, worker
        self._slot, self._pidfd, self._ttl_s = slot, pidfd, ttl_s
        self._sent = time.monotonic()

    def poll(self) -> _Inside | None:
        ended = bool(select.select([self._pidfd], [], [], 0)[0])  # asked first: its last answer came before its end
        answer = self._slot.read("answer")
        if answer is not None:
            return self._answered(answer)
        who = f"{self._worker.worker} (pid {self._worker.pid})"
        if ended:
            self._close()
            raise TargetGone(f"{who} ended before it could do it")
        waited_s = time.monotonic() - self._sent
        if waited_s > LISTEN_S and self._slot.take("withdrawn"):
            self._close()
            raise TargetGone(f"{who} took no order for {LISTEN_S:g} s: it is stopped, or something holds its GIL")
        if waited_s > LISTEN_S + WITHIN_S + RELEASE_S:
            self._slot.release()  # it took the order and is stuck with it: now it refuses, should it ever go on
            self._close()
            raise TargetGone(f"{who} took the order and did not answer for {waited_s:.0f} s")
        return None

    def withdraw(self) -> _Inside | None:
        if not self._slot.take("withdrawn"):
            self._slot.release()
            deadline = time.monotonic() + RELEASE_S
            while time.monotonic() < deadline:
                try:
                    if (active := self.poll()) is not None:
                        return active
                except TargetGone:
                    return None
                time.sleep(POLL_S)
        self._close()
        return None

    def _answered(self, answer: Json) -> _Inside:
        if "refused" in answer:
            self._close()
            raise TargetGone(f"{self._worker.worker}: {answer['refused']}")
        proof = answer["proof"] if isinstance(answer["proof"], Mapping) else {}
        injection = receipt(self._fault, self._kind, self._worker, int(str(answer["at"])), proof)
        if self._ttl_s is None:
            self._close()
        return _Inside(injection, self._slot, self._pidfd, self._ttl_s)

    def _close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class _Inside:
    """A fault that the process made in itself."""

    def __init__(self, injection: Injection, slot: Slot, pidfd: int, ttl_s: float | None) -> None:
        self.injection = injection
        self.ttl_s = ttl_s
        self._slot = slot
        self._pidfd = pidfd if ttl_s is not None else -1

    @property
    def over(self) -> str:
        return "the process says that it is over" if self._slot.read("ended") is not None else ""

    def revert(self) -> Reverted:
        """Ask for its end by the page that both have mapped, and wait until the process has said what it saw."""
        if self._pidfd < 0:
            return Reverted(alive=False)
        self._slot.release()
        deadline = time.monotonic() + RELEASE_S
        while (seen := self._slot.read("ended")) is None and time.monotonic() < deadline and not self._gone(POLL_S):
            pass
        alive = seen is not None and not self._gone(0)
        self.close()
        return Reverted(alive=alive, proof=seen or {})

    def _gone(self, within_s: float) -> bool:
        return bool(select.select([self._pidfd], [], [], within_s)[0])

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
