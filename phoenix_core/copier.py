"""How a snapshot comes from the live tensors into its slot on the host, beside the training.

From a GPU by a stream of its own into pinned memory: the copy engine works while the step's kernels run, and only the
thread that copies waits for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Copier(Protocol):
    """The whole of what a snapshot knows of the device that the state lies on."""

    def pin(self, memory: memoryview) -> None:
        """Say of host memory, that of a numpy array, that it will be copied into, again and again."""

    def mark(self) -> object:
        """Called by the training thread, from which the state does not change until the copy is done: an instant that
        all that was asked of the device before comes before."""

    def copy(self, parts: Sequence[torch.Tensor], room: torch.Tensor, mark: object) -> None:
        """Write `parts` (uint8, of one dimension) one after the other into `room`; returns once they are there."""


class HostCopier:
    """For tensors of the CPU; torch lets other threads run while it copies."""

    def pin(self, memory: memoryview) -> None:
        pass

    def mark(self) -> object:
        return None

    def copy(self, parts: Sequence[torch.Tensor], room: torch.Tensor, mark: object) -> None:
        offset = 0
        for part in parts:
            room[offset : offset + part.numel()].copy_(part)
            offset += part.numel()


class DeviceCopier:
    """For a state with tensors on one CUDA device (and others on the CPU, as an optimizer's counters).

    `cuda` is torch.cuda, or what stands in for it in a test.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)
        self._pinned: set[int] = set()

    def pin(self, memory: memoryview) -> None:
        """Registered rather than allocated pinned: torch rounds pinned memory up to a power of two."""
        array: Any = memory.obj
        address = array.ctypes.data
        if address in self._pinned:
            return
        with self._cuda.device(self._device):  # another thread's is device 0, which would get a context
            self._cuda.check_error(self._cuda.cudart().cudaHostRegister(address, array.nbytes, 0))
        self._pinned.add(address)
        weakref.finalize(array, self._unpin, address).atexit = False

    def _unpin(self, address: int) -> None:
        """Its memory is about to be freed, and may be another's in a moment."""
        self._pinned.discard(address)
        self._cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> object:
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(self._device))
        return event

    def copy(self, parts: Sequence[torch.Tensor], room: torch.Tensor, mark: object) -> None:
        self._stream.wait_event(mark)
        offset = 0
        with self._cuda.stream(self._stream):
            for part in parts:
                room[offset : offset + part.numel()].copy_(part, non_blocking=True)
                offset += part.numel()
            done = self._cuda.Event()
            done.record(self._stream)
        done.synchronize()


def copier_for(parts: Sequence[torch.Tensor]) -> Copier:
    """The one for the device that most of the state lies on."""
    device = next((part.device for part in parts if part.is_cuda), None)
    return HostCopier() if device is None else DeviceCopier(device)
