"""What an Xid does: to what NVML says of the GPU, and to the process that uses it. Pure.

The kernel log, NVML and the process must agree, or a detector that looks at two of them learns something wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from chaos.nvml.state import Gpu
from chaos.nvml.xid_lines import LOST, RECOVERY_CHANGED, Driver
from phoenix_core.xids import GRAVITY, Action, catalogue

CUDA_ERRORS: Final[Mapping[int, tuple[str, str]]] = {
    46: ("cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    214: ("cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"),
    220: ("cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"),
    226: ("cudaErrorContained", "Invalid access of peer GPU memory over nvlink or a hardware error"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    702: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    710: ("cudaErrorAssert", "device-side assert triggered"),
    715: ("cudaErrorIllegalInstruction", "an illegal instruction was encountered"),
    716: ("cudaErrorMisalignedAddress", "misaligned address"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    802: ("cudaErrorSystemNotReady", "system not yet initialized"),
    999: ("cudaErrorUnknown", "unknown error"),
}
"""Name and words of each code that an Xid leads to, as cudaGetErrorString gives them."""

_NO_ANSWER: Final = (119, 120)
_LINKS: Final = range(144, 151)
_LOST_MEMORY: Final = (48, 94, 95, 140, 171, 172)
_SINGLE_BITS: Final = 10_000
_BROKEN_LINK: Final = 14

_RECOVERY: Final = (
    Action.NOTHING, Action.QUARANTINE_GPU, Action.QUARANTINE_NODE, Action.QUARANTINE_GPU, Action.QUARANTINE_GPU,
    Action.QUARANTINE_NODE,
)  # fmt: skip
"""What each recovery action of NVML leaves of a GPU, by its number."""


def default_effect(xid: int) -> str:
    """raise, hang or none: an error of the whole fabric or of the GPU's own processor is waited for in vain."""
    if xid in _LINKS or xid in _NO_ANSWER:
        return "hang"
    return "raise" if catalogue()[xid].cuda_errors else "none"


def default_code(xid: int) -> int:
    """The CUDA error that a running process meets most likely; 999, unknown error, where none is reported."""
    return next(iter(catalogue()[xid].cuda_errors), 999)


def error_text(code: int) -> str:
    """What torch says of it."""
    name, words = CUDA_ERRORS[code]
    where = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
    return f"CUDA error: {words}\nSearch for `{name}' in {where} for more information."


def struck(gpu: Gpu, xid: int, driver: Driver, recovery: int) -> Gpu:
    """The GPU after this Xid. `recovery` is what NVML's recovery action becomes, where the Xid announces it (154)."""
    if xid == LOST:
        return replace(gpu, lost=1)
    if xid in _NO_ANSWER:
        return replace(gpu, block_ms=driver.rpc_s * 1000)
    if xid == RECOVERY_CHANGED:
        return replace(gpu, recovery_action=recovery)
    if xid in _LOST_MEMORY:
        volatile, aggregate = gpu.ecc_uncorrected_volatile + 1, gpu.ecc_uncorrected_aggregate + 1
        return replace(gpu, ecc_uncorrected_volatile=volatile, ecc_uncorrected_aggregate=aggregate)
    if xid == 92:
        volatile, aggregate = gpu.ecc_corrected_volatile + _SINGLE_BITS, gpu.ecc_corrected_aggregate + _SINGLE_BITS
        return replace(gpu, ecc_corrected_volatile=volatile, ecc_corrected_aggregate=aggregate)
    if xid == 63:
        return replace(gpu, remap_uncorrected=gpu.remap_uncorrected + 1, remap_pending=1)
    if xid == 64:
        return replace(gpu, remap_failure=1)
    if xid == 74:
        return replace(gpu, nvlink_crc_data=gpu.nvlink_crc_data + 1, links_down=gpu.links_down | 1 << _BROKEN_LINK)
    if xid in _LINKS:
        return replace(gpu, nvlink_recovery=gpu.nvlink_recovery + 1)
    return gpu


def healed(gpu: Gpu) -> Gpu:
    """As after a reset: what it has counted stays."""
    return replace(gpu, lost=0, block_ms=0, recovery_action=0, remap_pending=0, remap_failure=0, links_down=0)


def asked_for(xids: Sequence[int], recovery: int, *, all_gpus: bool) -> Action:
    """What these Xids of one GPU ask for, by the catalogue; `all_gpus`: each GPU of a node with several has them."""
    actions = [catalogue()[xid].action for xid in xids]
    actions += [_RECOVERY[recovery]] if RECOVERY_CHANGED in xids else []
    actions += [Action.QUARANTINE_NODE] if all_gpus and set(xids) & set(_LINKS) else []
    # The words of our own lines say `Fatal` of these two only.
    actions += [Action.QUARANTINE_GPU] if set(xids) & {149, 150} else []
    return max(actions, key=GRAVITY.index)
