"""Watches the GPUs of a node: NVML's events and state, and the kernel log. Imports no torch, decides nothing.

Calls of NVML may not come back for minutes, so each kind has a thread of its own: one waits for events and does nothing
else, one asks for the recovery action and whether the GPU is there. The agent's loop never calls NVML; it sees how long
a call has been going on, and says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phoenix_core.xid_reports import (
    LINKS,
    LOST,
    RECOVERY_CHANGED,
    Judge,
    Judgement,
    Sighting,
    read_line,
    said_of,
    visible,
)
from phoenix_core.xids import Action

LIBRARY: Final = "libnvidia-ml.so.1"
KERNEL_LOG: Final = Path("/dev/kmsg")
WAIT_MS: Final = 1000
_RECOVERY_ACTION: Final = 230
"""NVML's field."""
_GONE: Final = -1
_RECORD_BYTES: Final = 8192
_LATEST_REPORTS: Final = 64


@dataclass(frozen=True, kw_only=True)
class HealthSettings:
    """`log` is the kernel log to read; None: that of the kernel where it can be read and there is a GPU.

    The state of each GPU is asked for every `poll_s`. A call that has not come back after `deadline_s` is reported.
    `chosen` is CUDA_VISIBLE_DEVICES.
    """

    watch: bool = True
    log: Path | None = None
    poll_s: float = 5.0
    deadline_s: float = 10.0
    chosen: str | None = None

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> HealthSettings:
        log = environment.get("PHOENIX_KERNEL_LOG")
        return HealthSettings(
            watch=environment.get("PHOENIX_GPU_MONITOR", "on") != "off",
            log=Path(log) if log else None,
            chosen=environment.get("CUDA_VISIBLE_DEVICES"),
        )


@dataclass(frozen=True, kw_only=True)
class Device:
    uuid: str
    pci: str


class Nvml:
    """NVML's threads. They call `seen` with what they saw, and `found` once, with the GPUs or why there are none."""

    def __init__(
        self, poll_s: float, seen: Callable[[Sighting], None], found: Callable[[list[Device], str], None]
    ) -> None:
        self._poll_s = poll_s
        self._seen = seen
        self._found = found
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        self._actions: dict[int, int | None] = {}
        self._look = threading.Event()
        self.calling: dict[str, float] = {}
        """By when a call that is going on should have come back, by its kind, on the monotonic clock."""

    def start(self) -> None:
        threading.Thread(target=self._begin, name="phoenix-nvml-events", daemon=True).start()

    def look_now(self) -> None:
        """Ask for the state of the GPUs at once."""
        self._look.set()

    @contextlib.contextmanager
    def _call(self, kind: str, takes_s: float = 0.0) -> Iterator[None]:
        self.calling[kind] = time.monotonic() + takes_s
        try:
            yield
        finally:
            del self.calling[kind]

    def _begin(self) -> None:
        try:
            with self._call("start"):
                ctypes.CDLL(LIBRARY)  # where there is none, its module is not worth an import
                self._nvml = importlib.import_module("pynvml")
                self._nvml.nvmlInit()
                devices = [self._meet(index) for index in range(self._nvml.nvmlDeviceGetCount())]
                # How a GPU is at the start is no error of this job: one that cannot be used fails its rank soon enough.
                self._actions = {index: self._recovery_action(index) for index in self._handles}
                events, deaf = self._subscribe()
        except Exception as error:  # no library, no driver: NVML's own errors
            self._found([], f"{type(error).__name__}: {error}")
            return
        self._found(devices, deaf)
        threading.Thread(target=self._look_forever, name="phoenix-nvml-state", daemon=True).start()
        if not deaf:
            self._wait_forever(events)

    def _meet(self, index: int) -> Device:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            info = self._nvml.nvmlDeviceGetPciInfo(handle)
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError:
            return Device(uuid="", pci="")  # lost already; the others can still be watched
        self._handles[index] = handle
        return Device(uuid=uuid, pci=f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}")

    def _recovery_action(self, index: int) -> int | None:
        """NVML's number; None where the GPU cannot say, _GONE where it is lost."""
        try:
            (field,) = self._nvml.nvmlDeviceGetFieldValues(self._handles[index], [_RECOVERY_ACTION])
        except self._nvml.NVMLError_GpuIsLost:
            return _GONE
        except self._nvml.NVMLError:
            return None
        return int(field.value.uiVal) if field.nvmlReturn == 0 else None

    def _subscribe(self) -> tuple[Any, str]:
        """The set of events, and why nothing can be heard, where that is so."""
        events, xid = self._nvml.nvmlEventSetCreate(), self._nvml.nvmlEventTypeXidCriticalError
        able = [h for h in self._handles.values() if self._nvml.nvmlDeviceGetSupportedEventTypes(h) & xid]
        for handle in able:
            self._nvml.nvmlDeviceRegisterEvents(handle, xid, events)
        return events, "" if able else "its GPUs report no Xids"

    def _wait_forever(self, events: Any) -> None:
        addresses = {_address(handle): index for index, handle in self._handles.items()}
        while True:
            began = time.monotonic()
            try:
                with self._call("events", takes_s=WAIT_MS / 1000):
                    event = self._nvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except self._nvml.NVMLError as error:
                if not isinstance(error, self._nvml.NVMLError_Timeout):
                    self.look_now()  # a lost GPU, most likely
                # Some libraries return at once where they should wait.
                time.sleep(max(0.0, WAIT_MS / 1000 - (time.monotonic() - began)))
                continue
            gpu, xid = addresses.get(_address(event.device)), int(event.eventData)
            self._seen(Sighting(xid=xid, source="nvml", gpu=gpu))
            if xid == RECOVERY_CHANGED or xid in LINKS:
                self.look_now()

    def _look_forever(self) -> None:
        while True:
            self._look.wait(self._poll_s)
            self._look.clear()
            for index, before in self._actions.items():
                with self._call("state"):
                    action = self._recovery_action(index)
                if action is None or action == before:
                    continue
                self._actions[index] = action
                if action == _GONE:
                    self._seen(Sighting(xid=LOST, source="state", gpu=index, words="NVML: GPU is lost"))
                elif before != _GONE:
                    self._seen(Sighting(xid=RECOVERY_CHANGED, source="state", gpu=index, recovery=action))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class LogTail:
    """What is written to a kernel log from now on: the kernel's own device, or a file that may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._fd = -1
        if self._open():
            os.lseek(self._fd, 0, os.SEEK_END)

    def _open(self) -> bool:
        with contextlib.suppress(OSError):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return self._fd >= 0

    @property
    def readable(self) -> bool:
        return self._fd >= 0

    def lines(self) -> list[str]:
        if self._fd < 0 and not self._open():
            return []
        found: list[str] = []
        while True:
            try:
                block = os.read(self._fd, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # the kernel has overwritten what was not read yet: the next record is the oldest that is left
            except OSError:
                break
            if not block:
                break
            *whole, self._rest = (self._rest + block).split(b"\n")
            found += [line.decode(errors="replace") for line in whole]
        return found


class Health:
    """The watch over one node's GPUs, for its agent's loop; all callbacks but `post` are called in that loop."""

    def __init__(
        self,
        settings: HealthSettings,
        *,
        node: str,
        users: Callable[[], Mapping[str, int]],
        post: Callable[[Callable[[], None]], None],
        send: Callable[[dict[str, Any]], None],
        emit: Callable[..., object],
    ) -> None:
        """`users` are the workers of this node and their local ranks, by which scripts choose a GPU.

        `post` hands a callback from another thread to the loop, `send` a message to the coordinator; `emit` writes an
        event.
        """
        self._settings = settings
        self._node = node
        self._users = users
        self._send = send
        self._emit = emit
        self._judge = Judge()
        self._devices: list[Device] = []
        self._visible: tuple[int, ...] = ()
        self._log = LogTail(settings.log) if settings.watch and settings.log is not None else None
        self._late: dict[str, float] = {}
        self._reports: deque[dict[str, Any]] = deque(maxlen=_LATEST_REPORTS)
        self.nvml = Nvml(
            settings.poll_s,
            seen=lambda sighting: post(lambda: self.see(sighting)),
            found=lambda devices, why: post(lambda: self._found(devices, why)),
        )

    def start(self) -> None:
        if self._settings.watch:
            self.nvml.start()

    def say_again(self) -> None:
        """To a coordinator that was started anew: the one before may not have read it. What is known is ignored."""
        for report in self._reports:
            self._send(report)

    def _found(self, devices: list[Device], why: str) -> None:
        self._devices = devices
        self._judge.gpus = range(len(devices))
        uuids = [device.uuid for device in devices]
        self._visible = visible(len(devices), uuids, self._settings.chosen)
        if self._log is None and devices and os.access(KERNEL_LOG, os.R_OK):
            self._log = LogTail(KERNEL_LOG)
        if devices or self._log is not None:
            log = self._settings.log or KERNEL_LOG
            read = str(log) if self._log is not None and self._log.readable else ""
            self._emit("gpus_watched", gpus=uuids, used=list(self._visible), log=read, deaf=why)

    def look(self, now: float) -> None:
        """Read the log and see whether NVML answers; called every few milliseconds. `now` is monotonic seconds."""
        for line in self._log.lines() if self._log is not None else ():
            if (sighting := read_line(line)) is not None:
                self.see(sighting)
        calling = dict(self.nvml.calling)
        for kind, due in calling.items():
            if now - due > self._settings.deadline_s and kind not in self._late:
                self._late[kind] = due
                self._emit("gpu_monitor_blocked", call=kind, seconds=round(now - due, 1))
        for kind, due in list(self._late.items()):
            if calling.get(kind) != due:
                del self._late[kind]
                self._emit("gpu_monitor_answered", call=kind, seconds=round(now - due, 1))

    def see(self, sighting: Sighting) -> None:
        gpu, pci = sighting.gpu, sighting.pci
        if gpu is None:
            gpu = next((index for index, device in enumerate(self._devices) if device.pci == pci), None)
        elif gpu < len(self._devices):
            pci = self._devices[gpu].pci
        sighting = Sighting(**{**sighting.__dict__, "gpu": gpu, "pci": pci})
        judged = self._judge.see(sighting, time.monotonic())
        workers = self._concerned(gpu, judged) if judged.told else None
        # Nobody's process has to be replaced where nobody uses the GPU; a node is told of in any case.
        told = workers is not None and (bool(workers) or judged.action is not Action.RESPAWN)
        self._emit(
            "xid_seen",
            xid=sighting.xid,
            source=sighting.source,
            gpu=gpu,
            pci=pci,
            words=sighting.words[:200],
            action=str(judged.action),
            told=told,
        )
        if told:
            report = {"workers": workers, "xids": [sighting.xid], "action": str(judged.action)}
            self._reports.append({"op": "gpu_failed", "node": self._node, "error": said_of(sighting, judged), **report})
            self._send(self._reports[-1])

    def _concerned(self, gpu: int | None, judged: Judgement) -> list[str] | None:
        """The workers that use what failed; None where it is another job's. More ranks than GPUs take turns on them."""
        failed = range(len(self._devices)) if judged.whole_node else [gpu]
        ours = [self._visible.index(one) for one in failed if one in self._visible]
        if not ours:
            return None
        return [worker for worker, rank in self._users().items() if rank % len(self._visible) in ours]
