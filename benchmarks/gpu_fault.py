"""A process that makes an error on a GPU, and says how the runtime would take it.

    python -m benchmarks.gpu_fault cuda illegal_access      (or misaligned, assertion: one that ends the CUDA context)

A JSON line: the error's type and text, its classification, and the Xids that NVML told of meanwhile (or why it told of
none). With `cpu` errors are raised instead, in torch's words: any number of them. A driver should report Xid 31 for an
illegal access, 13 for a misaligned address, and 43 for an assertion.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any, Final

import torch

from phoenix_core.device_errors import of_exception
from phoenix_core.health import Nvml
from phoenix_core.xid_reports import Sighting

EVENT_WAIT_S: Final = 5.0
OWN: Final = "the script's own error"
SPAN: Final = 1 << 40
"""Bytes that are claimed to follow one small allocation: their far end is nobody's."""


class _Claimed:
    """Memory that is described to torch as something else than it is: much larger, or words between two words."""

    def __init__(self, pointer: int, size: int, kind: str) -> None:
        interface = {"shape": (size,), "typestr": kind, "data": (pointer, False), "version": 3}
        self.__cuda_array_interface__ = interface


def _illegal_access() -> None:
    base = torch.zeros(1, dtype=torch.uint8, device="cuda")
    torch.as_tensor(_Claimed(base.data_ptr(), SPAN, "|u1"), device="cuda")[-4096:].fill_(1)


def _misaligned() -> None:
    base = torch.zeros(4096, dtype=torch.uint8, device="cuda")
    torch.as_tensor(_Claimed(base.data_ptr() + 1, 256, "<f4"), device="cuda").fill_(1.0)


def _assertion() -> None:
    torch.zeros(1, device="cuda")[torch.ones(1, dtype=torch.int64, device="cuda")].sum()


@dataclass(frozen=True, kw_only=True)
class Way:
    """What is done, which error comes of it, and whether that is the script's own mistake."""

    act: Callable[[], None]
    code: int
    text: str
    own: bool = False

    def fail(self, kind: str) -> None:
        """Raises what torch raises of it."""
        if kind == "cpu":
            error = torch.AcceleratorError(f"CUDA error: {self.text}")
            error.error_code = self.code  # type: ignore[attr-defined]  # torch sets it, and its stub does not say so
            raise error
        self.act()
        torch.cuda.synchronize()


WAYS: Final = {
    "illegal_access": Way(act=_illegal_access, code=700, text="an illegal memory access was encountered"),
    "misaligned": Way(act=_misaligned, code=716, text="misaligned address"),
    "assertion": Way(act=_assertion, code=710, text="device-side assert triggered", own=True),
}


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
    kind, *names = arguments
    watch = XidWatch() if kind == "cuda" else None
    for name in names:
        try:
            WAYS[name].fail(kind)
        except RuntimeError as error:
            print(json.dumps({"way": name, **_told(error, watch)}), flush=True)
        else:
            print(f"no error came of {name}", file=sys.stderr, flush=True)
    os._exit(0)  # as the runtime leaves: destructors would call into the device


def _told(error: RuntimeError, watch: XidWatch | None) -> dict[str, Any]:
    device = of_exception(error)
    said: dict[str, Any] = {"type": type(error).__name__, "text": str(error).partition("\n")[0]}
    if device is None:
        said |= {"code": None, "possible_xids": [], "action": OWN}
    else:
        said |= {"code": device.code, "possible_xids": list(device.xids), "action": str(device.action)}
    said["emulated"] = watch is None
    said["xids"] = watch.seen() if watch else []
    said["no_xid_because"] = watch.absent if watch else "the error was raised, not made"
    return said


if __name__ == "__main__":
    main(sys.argv[1:])
