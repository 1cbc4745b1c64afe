"""An Xid of an emulated GPU: in what NVML says, in the kernel log and in the training, so that they agree."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chaos.agent.mailbox import box_of
from chaos.errors import TargetGone
from chaos.faults import Injection, Json, PlannedFault
from chaos.injectors.base import Active, Pending, Reverted, receipt
from chaos.injectors.inside import InsideFault
from chaos.injectors.process import open_identified
from chaos.kinds import FaultKind
from chaos.kinds_gpu import GPU_XID
from chaos.kinds_inside import NATIVE_HANG, PROCESS_EXCEPTION
from chaos.nvml.effects import default_code, default_effect, error_text, healed, struck
from chaos.nvml.state import EVENT_XID, NO_INSTANCE, Gpu, NodeGpus, NvmlEvent
from chaos.nvml.xid_lines import (
    DRIVERS,
    LOST,
    RECOVERY_CHANGED,
    Driver,
    XidReport,
    introduction,
    numberless_loss,
    records,
)
from chaos.procfs import process_stat
from chaos.roster import WorkerInfo
from phoenix_core.xids import catalogue

DELIVERY_S: Final = 1.0
"""How long a receipt waits for somebody to have been handed the events: a runtime need not listen."""
_NO_PROCESS: Final = (LOST, 46, 48)
"""Channel errors that the driver blames on no process."""


class GpuXid:
    """Writes it for the GPU of the target; the training process is then told what it meets of it."""

    kind: Final[FaultKind] = GPU_XID

    def __init__(self, gpus: Path, boxes: Path) -> None:
        """`gpus` has a directory for each node, `boxes` those of the agents inside of the processes."""
        self._gpus = gpus
        self._boxes = boxes

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Pending:
        node = NodeGpus(self._gpus / str(worker.node))
        try:
            driver = _driver_of(node)
        except (OSError, ValueError) as error:
            raise TargetGone(f"{worker.worker} runs on no node with emulated GPUs ({worker.node})") from error
        effect = _effect(fault.params, worker)
        ranks = [one for one in (worker, *worker.others) if one.rank is not None] if effect != "none" else []
        pidfds: list[int] = []
        try:
            pidfds += [open_identified(one) for one in ranks or (worker,)]
            if ended := [one for one in ranks or (worker,) if _has_ended(one)]:
                raise TargetGone(f"{ended[0].worker} (pid {ended[0].pid}) has ended")
            if effect in ("raise", "hang"):
                self._need_agents(ranks)
            at = time.monotonic_ns()
            for pidfd in pidfds if effect == "kill" else ():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)
        gpus = range(len(node.read().gpus)) if worker.others else [worker.local_rank or 0]
        written = _Written(node, gpus, fault, worker, driver)
        orders = [order for one in ranks if (order := self._order(effect, fault, one)) is not None]
        return _Struck(fault, worker, at, written, effect, orders)

    def _need_agents(self, ranks: Sequence[WorkerInfo]) -> None:
        for one in ranks:
            if not box_of(self._boxes, one.pid, one.start_ticks).is_dir():
                raise TargetGone(f"no agent runs in {one.worker}: start it by python -m chaos.agent")

    def _order(self, effect: str, fault: PlannedFault, worker: WorkerInfo) -> Pending | None:
        """What the process is told to meet; it may have been ended by now, by who heard of the Xid."""
        xid = int(str(fault.params["xid"]))
        if effect == "raise":
            code = int(str(fault.params.get("code", default_code(xid))))
            error: Json = {"error": "torch.AcceleratorError", "text": error_text(code), "code": code, "place": "now"}
            return self._tell(PROCESS_EXCEPTION, "raise", replace(fault, params=error), worker)
        if effect == "hang":
            hang: Json = {"gil": False, "ttl_s": fault.params["ttl_s"]}
            return self._tell(NATIVE_HANG, "hang", replace(fault, params=hang), worker)
        return None

    def _tell(self, kind: FaultKind, act: str, fault: PlannedFault, worker: WorkerInfo) -> Pending | None:
        with contextlib.suppress(TargetGone):
            return InsideFault(kind, act, self._boxes).inject(fault, worker)
        return None


def _has_ended(worker: WorkerInfo) -> bool:
    stat = process_stat(worker.pid)
    return stat is None or stat.ended


def _driver_of(node: NodeGpus) -> Driver:
    version = node.read().driver
    return next(driver for driver in DRIVERS.values() if driver.version == version)


def _effect(params: Json, worker: WorkerInfo) -> str:
    asked = str(params["effect"])
    if worker.rank is None and asked in ("default", "raise", "hang"):
        return "none"  # nothing is computed there yet
    return default_effect(int(str(params["xid"]))) if asked == "default" else asked


class _Written:
    """The Xids of a fault as they were written: state first, then the log, then the events, as the driver does."""

    def __init__(
        self, node: NodeGpus, gpus: Sequence[int], fault: PlannedFault, worker: WorkerInfo, driver: Driver
    ) -> None:
        params = fault.params
        then = params["then"]
        assert isinstance(then, Sequence)
        self.xids = [int(str(params["xid"])), *(int(str(xid)) for xid in then)]
        self.node, self.gpus, self.driver = node, list(gpus), driver
        self._params, self._worker = params, worker
        self.witnesses = str(params["witnesses"])
        self.lines: list[str] = []
        events: list[NvmlEvent] = []
        instance = int(str(params["mig"])) if "mig" in params else NO_INSTANCE
        for xid in self.xids:
            for index in self.gpus:
                self._strike(index, xid)
                events.append(NvmlEvent(gpu=index, type=EVENT_XID, data=xid, gi=instance))
        if self.witnesses != "nvml":
            log(node, self.lines)
        self.told_at = time.monotonic_ns()
        self.events = node.tell(events) if self.witnesses != "log" else []

    def _strike(self, index: int, xid: int) -> None:
        before = self.node.read().gpus[index]
        recovery = int(str(self._params["recovery"]))
        if self.witnesses != "log":
            self.node.change(index, lambda gpu: struck(gpu, xid, self.driver, recovery))
        self.lines += self._introduced(before)
        if xid == LOST and self._params["numberless"]:
            self.lines += numberless_loss(before)
            return
        channel = catalogue()[xid].mnemonic.startswith("ROBUST_CHANNEL_") and xid not in _NO_PROCESS
        words = str(self._params.get("words", "")) if xid == self.xids[0] else ""
        self.lines += XidReport(
            xid=xid,
            gpu=before,
            driver=self.driver,
            process=(self._worker.pid, self._name()) if channel or xid == 119 else None,
            mig=int(str(self._params["mig"])) if "mig" in self._params else None,
            cause=self.xids[0] if xid == 45 and self.xids[0] != 45 else None,
            recovery=(before.recovery_action, recovery),
            words=words,
        ).lines

    def _introduced(self, gpu: Gpu) -> tuple[str, ...]:
        lines = introduction(gpu)
        known = lines[0] in self.lines or lines[0] in self.node.kernel_log.read_text()
        return () if known else lines

    def _name(self) -> str:
        stat = process_stat(self._worker.pid)
        return stat.name if stat is not None else "python"

    @property
    def lasts(self) -> bool:
        """Whether the GPU is in a condition that only a reset ends."""
        return any(gpu != healed(gpu) for gpu in self._now())

    def heal(self) -> bool:
        """Whether something had to be healed, and was. A recovery action that is over is announced, as it came."""
        if not self.lasts:
            return False
        for index, gpu in zip(self.gpus, self._now(), strict=True):
            self.node.change(index, healed)
            if gpu.recovery_action:
                back = XidReport(xid=RECOVERY_CHANGED, gpu=gpu, driver=self.driver, recovery=(gpu.recovery_action, 0))
                log(self.node, back.lines)
                self.node.tell([NvmlEvent(gpu=index, type=EVENT_XID, data=RECOVERY_CHANGED)])
        return True

    def _now(self) -> list[Gpu]:
        gpus = self.node.read().gpus
        return [gpus[index] for index in self.gpus]

    def proof(self) -> dict[str, object]:
        """What was written, and to whom NVML has handed it so far: each process with its latency, in microseconds."""
        delivered = self.node.deliveries(self.events)
        first: dict[int, float] = {}
        for delivery in delivered:
            first.setdefault(delivery.pid, (delivery.at - self.told_at) / 1000)
        return {
            "xids": self.xids,
            "gpus": [gpu.pci for gpu in self._now()],
            "driver": self.driver.version,
            "events": len(self.events),
            "delivered": len({delivery.event for delivery in delivered}),
            "handed_us": {str(pid): round(late, 1) for pid, late in first.items()},
            "log": str(self.node.kernel_log) if self.witnesses != "nvml" else "",
            "lines": [line[:200] for line in self.lines] if self.witnesses != "nvml" else [],
        }

    @property
    def heard(self) -> bool:
        return {delivery.event for delivery in self.node.deliveries(self.events)} == set(self.events)


def log(node: NodeGpus, lines: Sequence[str]) -> None:
    """Into the node's kernel log, as records."""
    first = len(node.kernel_log.read_bytes().splitlines())
    node.log(records(lines, first=first, at_us=time.monotonic_ns() // 1000))


class _Struck:
    """The Xid is written; somebody is being handed it, and the processes may be on their way to the error."""

    def __init__(
        self,
        fault: PlannedFault,
        worker: WorkerInfo,
        at: int,
        written: _Written,
        effect: str,
        orders: Sequence[Pending],
    ) -> None:
        self._fault, self._worker, self._at = fault, worker, at
        self._written = written
        self._effect = effect
        self._orders = list(orders)
        self._met: list[Active] = []
        self._spared: list[str] = []

    def poll(self) -> _Xid | None:
        for order in list(self._orders):
            try:
                met = order.poll()
            except TargetGone as error:
                # Whoever heard of the Xid was quicker: the process has been ended before it could meet the error.
                self._spared.append(str(error))
            else:
                if met is None:
                    continue
                self._met.append(met)
            self._orders.remove(order)
        late = time.monotonic_ns() - self._written.told_at > DELIVERY_S * 1e9
        return self._receipt() if not self._orders and (late or self._written.heard) else None

    def withdraw(self) -> _Xid:
        """The Xid is there already; only what the processes have not met yet can still be spared them."""
        for order in self._orders:
            met = order.withdraw()
            self._met += [met] if met is not None else []
            self._spared += ["withdrawn"] if met is None else []
        self._orders.clear()
        return self._receipt()

    def _receipt(self) -> _Xid:
        met = [{"worker": one.injection.worker, "at": one.injection.at, **one.injection.proof} for one in self._met]
        process = {"effect": self._effect, "met": met, "spared": self._spared}
        injection = receipt(self._fault, GPU_XID, self._worker, self._at, {**self._written.proof(), **process})
        return _Xid(injection, self._written, self._met)


class _Xid:
    """An Xid that was reported. It lasts while the GPU is in a condition that a reset would end, or a hang goes on."""

    def __init__(self, injection: Injection, written: _Written, met: Sequence[Active]) -> None:
        self.injection = injection
        self.ttl_s: float | None = float(str(injection.params["ttl_s"]))
        self._written = written
        self._hangs = [one for one in met if one.ttl_s is not None]
        self._reverted: Reverted | None = None

    @property
    def over(self) -> str:
        return "" if self._written.lasts or self._hangs else "nothing of it lasts"

    def revert(self) -> Reverted:
        if self._reverted is None:
            freed = [hang.revert().alive for hang in self._hangs]
            healed_now = self._written.heal()
            self._reverted = Reverted(alive=healed_now or any(freed), proof={"gpus": "healthy"})
        return self._reverted

    def close(self) -> None:
        for hang in self._hangs:
            hang.close()
