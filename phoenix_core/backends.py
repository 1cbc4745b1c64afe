"""What the inside of a group is made of on each kind of device, and how its collectives are ended from outside.

CPU tensors go through gloo, CUDA tensors through NCCL, as with torch's "cpu:gloo,cuda:nccl". A blocked gloo
collective ends when its sockets are shut down; an NCCL one when its communicator is aborted, which ends the kernel that
waits on the GPU and with it whatever waits for that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, HashStore, Store

from phoenix_core.device_errors import of_exception
from phoenix_core.errors import GenerationSuperseded
from phoenix_core.formation import FORMING_TIMEOUT
from phoenix_core.sockets import open_sockets, shut_down
from phoenix_core.work import COLLECTIVE_TIMEOUT, BreakableWork, DeviceWork

NCCL_SETTINGS: Final = {
    # Else the watchdog answers an asynchronous error, such as a lost peer, by ending the process.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # Else a watchdog that is held up, as by an abort, is taken for stuck and the process is ended.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # Else an error of the device ends the process in the watchdog, before the training code can say which it was.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # Else a thread of C++ asks the store, which is Python, whether somebody wants a dump.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    # Else no wait is left to the GPU, and each blocks the training thread where no signal reaches it.
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}
"""What ProcessGroupNCCL reads from the environment when one is made, and what it does by default otherwise."""

_c10d: Any = torch._C._distributed_c10d
"""What torch's own type stubs leave out."""
_ProcessGroup: Any = dist.ProcessGroup


@cache
def devices() -> tuple[str, ...]:
    """The kinds of device whose tensors a group of this process can take."""
    return ("cpu", "cuda") if dist.is_nccl_available() and torch.cuda.is_available() else ("cpu",)


def used_device() -> torch.device | None:
    """The CUDA device that the calling thread computes on; None in a process that has not used one."""
    if "cuda" not in devices() or not torch.cuda.is_initialized():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def settle() -> None:
    """Return once everything that was asked of the device is over. Call after the collectives were broken off."""
    if (device := used_device()) is not None:
        torch.cuda.synchronize(device)


class Part(Protocol):
    """The whole of what an inner group knows of the backend for one kind of device."""

    kind: Any
    """Its `ProcessGroup.BackendType`."""
    backend: Any

    def connect(self, device: torch.device) -> None:
        """Reach the peers now rather than in the first collective; blocks until all have come."""

    def break_off(self) -> None:
        """End every collective in flight, from any thread, and soon; called again and again."""

    def watched(self, work: Any, name: str, outputs: object) -> tuple[Any, Any]:
        """The Work for torch, and the one to ask how far the collective `name` has come."""

    def end(self) -> None:
        """The last word to the backend before it is destroyed, off the critical path."""


class GlooPart:
    """Opened by its constructor, which blocks until all members have come. Raises RuntimeError where they do not."""

    kind = dist.ProcessGroup.BackendType.GLOO

    def __init__(self, store: Store, rank: int, size: int, address: str) -> None:
        options = _c10d.ProcessGroupGloo._Options()
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = FORMING_TIMEOUT
        options._threads = 2
        before = open_sockets()
        self.backend = _c10d.ProcessGroupGloo(store, rank, size, options)
        self.backend._set_default_timeout(COLLECTIVE_TIMEOUT)
        self._sockets = open_sockets() - before

    def connect(self, device: torch.device) -> None:
        pass

    def break_off(self) -> None:
        shut_down(self._sockets)

    def watched(self, work: Any, name: str, outputs: object) -> tuple[Any, Any]:
        breakable = BreakableWork(work, name, outputs)
        return breakable, breakable

    def end(self) -> None:
        pass


class NcclPart:
    """Its constructor reaches nobody: the communicator is made by `connect`, or by the first collective."""

    kind = dist.ProcessGroup.BackendType.NCCL

    def __init__(self, store: Store, rank: int, size: int, name: str) -> None:
        os.environ.update(NCCL_SETTINGS)
        options = _c10d.ProcessGroupNCCL.Options()
        options._timeout = COLLECTIVE_TIMEOUT
        options.group_name = name
        self.backend = _c10d.ProcessGroupNCCL(store, rank, size, options)
        self._aborting: threading.Thread | None = None

    def connect(self, device: torch.device) -> None:
        self.backend.eager_connect_single_device(device)

    def break_off(self) -> None:
        """In a thread: an abort waits for kernels to end and threads of NCCL's to join."""
        if self._aborting is None:
            self._aborting = threading.Thread(target=self._abort, name="phoenix-abort", daemon=True)
            self._aborting.start()

    def _abort(self) -> None:
        with suppress(RuntimeError):  # it was not connected, or is aborted already
            self.backend.abort()

    def watched(self, work: Any, name: str, outputs: object) -> tuple[Any, Any]:
        return work, DeviceWork(work, name)

    def end(self) -> None:
        """Its destructor does not abort, and a communicator that is only forgotten keeps memory of the GPU."""
        self.break_off()
        assert self._aborting is not None
        self._aborting.join()


class LocalPart:
    """Answers at once from this rank's own data, whatever the device: for a spare that builds its model."""

    kind = dist.ProcessGroup.BackendType.CUSTOM

    def __init__(self, rank: int, size: int) -> None:
        self.backend = FakeProcessGroup._create_internal(rank, size)

    def connect(self, device: torch.device) -> None:
        pass

    def break_off(self) -> None:
        pass

    def watched(self, work: Any, name: str, outputs: object) -> tuple[Any, Any]:
        return work, work

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class Inner:
    """The inside of a group in one generation: a plain ProcessGroup that hands each collective to a device's part."""

    group: dist.ProcessGroup
    parts: dict[str, Part]

    def run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Begin the collective; as `Part.watched`."""
        work = getattr(self.group, name)(*args, **kwargs)
        part = self.parts["cpu"] if len(self.parts) == 1 else self.parts[_device_of(args) or "cpu"]
        return part.watched(work, name, args[:1])

    def connect(self, device: torch.device) -> None:
        """Raises GenerationSuperseded where a member does not come, and what torch raises where the device fails."""
        try:
            for part in self.parts.values():
                part.connect(device)
        except RuntimeError as error:
            if of_exception(error) is not None:
                raise
            raise GenerationSuperseded(f"a communicator on {device} could not be made: {error}") from error

    def break_off(self) -> None:
        for part in self.parts.values():
            part.break_off()

    def end(self) -> None:
        for part in self.parts.values():
            part.end()


def formed(store: Callable[[str], Store], rank: int, size: int, name: str, address: str) -> Inner:
    """An inside that reaches the peers. `store(suffix)` is the rendezvous of one part.

    Blocks until all members have come; raises GenerationSuperseded where they do not.
    """
    try:
        parts: dict[str, Part] = {"cpu": GlooPart(store("gloo"), rank, size, address)}
        if "cuda" in devices():
            parts["cuda"] = NcclPart(store("nccl"), rank, size, name)
    except RuntimeError as error:
        raise GenerationSuperseded(f"group {name} could not be formed: {error}") from error
    return _inner(store("group"), rank, size, parts)


def local(rank: int, size: int) -> Inner:
    return _inner(HashStore(), rank, size, dict.fromkeys(devices(), LocalPart(rank, size)))


def _inner(store: Store, rank: int, size: int, parts: dict[str, Part]) -> Inner:
    group: dist.ProcessGroup = _ProcessGroup(store, rank, size)
    group._set_default_backend(parts["cpu"].kind)
    for device, part in parts.items():
        group._register_backend(torch.device(device), part.kind, part.backend)
    return Inner(group, parts)


def _device_of(value: object) -> str:
    """The kind of device of the first tensor in a collective's arguments; empty where they have none, as a barrier."""
    if isinstance(value, torch.Tensor):
        return value.device.type
    if isinstance(value, list | tuple):
        return next((found for part in value if (found := _device_of(part))), "")
    return ""


def is_broken_collective(error: BaseException) -> bool:
    """Whether an error of torch's tells of a lost peer or an aborted communicator, rather than of a wrong call.

    gloo raises a bare RuntimeError that names the source file; NCCL calls a wrong call "invalid usage".
    """
    if isinstance(error, dist.DistBackendError):
        return "invalid usage" not in str(error) and "invalid argument" not in str(error)
    return isinstance(error, RuntimeError) and "gloo/" in str(error)
