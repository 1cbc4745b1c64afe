"""A process that makes an illegal memory access on a GPU and says how the runtime would take it.

    python -m benchmarks.gpu_fault cuda

One JSON line: the error's type and text, its classification, and the Xids that NVML told of meanwhile (or why it told
of none). With `cpu` the error is raised instead, in torch's words.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Final

import torch

from phoenix_core.device_errors import of_exception

EVENT_WAIT_MS: Final = 5000
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
    """NVML's events of the first GPU; `absent` says why there are none to be had."""

    def __init__(self) -> None:
        self.absent = ""
        self._set: Any = None
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            device = self._nvml.nvmlDeviceGetHandleByIndex(0)
            self._set = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(device, self._nvml.nvmlEventTypeXidCriticalError, self._set)
        except ImportError:
            self.absent = "pynvml (nvidia-ml-py) is not installed"
        except Exception as error:  # NVML's own, whose type is known only where it is installed
            self.absent = f"NVML: {error}"

    def seen(self) -> list[int]:
        found: list[int] = []
        while not self.absent:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 500 if found else EVENT_WAIT_MS)
            except Exception as error:
                self.absent = "" if found else f"NVML told of none in {EVENT_WAIT_MS} ms: {error}"
                break
            found.append(int(event.eventData))
        return found


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
