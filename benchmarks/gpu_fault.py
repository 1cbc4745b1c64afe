"""A process that makes an illegal memory access on a GPU and says how the runtime would take it.

    python -m benchmarks.gpu_fault cuda

One JSON line: the error's type and text, its classification, and the Xids that NVML told of meanwhile (or why it told
of none). With `cpu` the error is raised instead, in torch's words.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from queue import Empty, Queue
from typing import Any, Final

import torch

from phoenix_core.device_errors import of_exception
from phoenix_core.health import Nvml
from phoenix_core.xid_reports import Sighting

EVENT_WAIT_S: Final = 5.0
SPAN: Final = 1 << 40
"""Bytes that are claimed to follow one small allocation: their far end is nobody's."""


class _Claimed:
    """Memory that is described to torch as much larger than it is."""

    def __init__(self, pointer: int) -> None:
        self.__cuda_array_interface__ = {"shape": (SPAN,), "typestr": "|u1", "data": (pointer, False), "version": 3}


def fail(kind: str) -> None:
    """Raises what torch raises of an illegal memory access."""
    if kind == "cpu":
        error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        error.error_code = 700  # type: ignore[attr-defined]  # torch sets it, and its stub does not say so
        raise error
    base = torch.zeros(1, dtype=torch.uint8, device="cuda")
    claimed = torch.as_tensor(_Claimed(base.data_ptr()), device="cuda")
    claimed[-4096:].fill_(1)
    torch.cuda.synchronize()


class XidWatch:
    """What the runtime's own watch sees of the GPUs meanwhile; `absent` says why there is nothing to be seen."""

    def __init__(self) -> None:
        self._seen: Queue[Sighting] = Queue()
        found: Queue[str] = Queue()
        Nvml(poll_s=EVENT_WAIT_S, seen=self._seen.put, found=lambda _, why: found.put(why)).start()
        self.absent = found.get()

    def seen(self) -> list[int]:
        xids: list[int] = []
        with contextlib.suppress(Empty):
            while not self.absent:
                xids.append(self._seen.get(timeout=0.5 if xids else EVENT_WAIT_S).xid)
        if not xids and not self.absent:
            self.absent = f"NVML told of none in {EVENT_WAIT_S:g} s"
        return xids


def main(arguments: list[str]) -> None:
    kind = arguments[0]
    watch = XidWatch() if kind == "cuda" else None
    try:
        fail(kind)
    except RuntimeError as error:
        device = of_exception(error)
        said: dict[str, Any] = {"type": type(error).__name__, "text": str(error).partition("\n")[0]}
        said.update({"code": None, "possible_xids": [], "action": "the script's own error"} if device is None else {})
        if device is not None:
            said.update({"code": device.code, "possible_xids": list(device.xids), "action": str(device.action)})
        said["emulated"] = kind == "cpu"
        said["xids"] = watch.seen() if watch else []
        said["no_xid_because"] = watch.absent if watch else "the error was raised, not made"
        print(json.dumps(said), flush=True)
        os._exit(0)  # as the runtime leaves: destructors would call into the device
    print("no error came of an illegal access", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
