"""Whether an exception of the training code is the script's own or its device's, and what a device's error asks for.

An error of the device ends the CUDA context of the process: it cannot compute any more, whatever it catches. A mistake
of the script (a wrong shape, too little memory, an index out of bounds) would be made again by whoever took the rank.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from phoenix_core.xids import GRAVITY, Action, catalogue

_TEXTS: Final = {
    "CUDA-capable device(s) is/are busy or unavailable": 46,
    "all CUDA-capable devices are busy or unavailable": 46,
    "no CUDA-capable device is detected": 100,
    "invalid device ordinal": 101,
    "uncorrectable ECC error encountered": 214,
    "uncorrectable NVLink error detected during the execution": 220,
    "Invalid access of peer GPU memory over nvlink or a hardware error": 226,
    "an illegal memory access was encountered": 700,
    "the launch timed out and was terminated": 702,
    "hardware stack error": 714,
    "an illegal instruction was encountered": 715,
    "misaligned address": 716,
    "operation not supported on global/shared address space": 717,
    "invalid program counter": 718,
    "unspecified launch failure": 719,
    "system not yet initialized": 802,
    "unknown error": 999,
}
"""What cudaGetErrorString says of each code that is the device's.

Not among them: 2, out of memory, and 710, a device-side assert, which an index out of bounds raises: both come again.
"""

_WITHOUT_XID: Final = {802: Action.QUARANTINE_NODE}
"""Codes of which the catalogue knows no Xid, where a new process on the same GPU would not do."""

_CUDA: Final = re.compile(r"CUDA (?:\w+ )?error: ([^\n]*)", re.IGNORECASE)
_NCCL: Final = re.compile(r"Cuda failure (?:(\d+) )?'([^'\n]*)'")
_LIBRARY: Final = re.compile(r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)")


@dataclass(frozen=True, kw_only=True)
class DeviceError:
    """`code` is CUDA's, None where a library hid it; `xids` are those that are known to show themselves so."""

    code: int | None
    xids: tuple[int, ...]
    action: Action


def classify(text: str, code: int | None = None) -> DeviceError | None:
    """What the message of a RuntimeError, with CUDA's `code` where torch gives it, tells; None for the script's own."""
    if code is None:
        code = _code_in(text)
    if code in _TEXTS.values():
        return _device_error(code)
    if code is None and _LIBRARY.search(text):
        return DeviceError(code=None, xids=(), action=Action.RESPAWN)
    return None


def of_exception(error: BaseException | None) -> DeviceError | None:
    """The device's error in a chain of exceptions: a script may have wrapped it, or failed while it handled it."""
    while error is not None:
        if isinstance(error, RuntimeError):
            found = classify(str(error), getattr(error, "error_code", None))
            if found is not None:
                return found
        error = error.__cause__ or error.__context__
    return None


def _code_in(text: str) -> int | None:
    said = [match.group(1) for match in _CUDA.finditer(text)]
    for match in _NCCL.finditer(text):
        if match.group(1):
            return int(match.group(1))
        said.append(match.group(2))
    return next((code for words in said for known, code in _TEXTS.items() if words.startswith(known)), None)


def _device_error(code: int | None) -> DeviceError:
    """The action that most of the code's Xids ask for, of equally many the graver; never none, the process is lost."""
    xids = [xid for xid in catalogue().values() if code in xid.cuda_errors]
    votes = Counter(xid.action for xid in xids if xid.action is not Action.NOTHING)
    default = _WITHOUT_XID.get(code or 0, Action.RESPAWN)
    action = max(votes, key=lambda one: (votes[one], GRAVITY.index(one)), default=default)
    return DeviceError(code=code, xids=tuple(xid.number for xid in xids), action=action)
