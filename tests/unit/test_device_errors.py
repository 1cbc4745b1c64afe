"""Whose error an exception of the training code is, and what the catalogue of Xids asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from phoenix_core.device_errors import DeviceError, classify, of_exception
from phoenix_core.xids import Action, catalogue

ASYNC = (
    "\nSearch for `cudaErrorX' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
    "information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
NCCL = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure {}'an illegal memory access was encountered'"
)


@pytest.mark.parametrize(
    ("text", "code", "action"),
    [
        ("CUDA error: an illegal memory access was encountered" + ASYNC, 700, Action.RESPAWN),
        ("CUDA error: unspecified launch failure" + ASYNC, 719, Action.RESPAWN),
        ("CUDA error: misaligned address" + ASYNC, 716, Action.RESPAWN),
        ("CUDA error: the launch timed out and was terminated" + ASYNC, 702, Action.RESPAWN),
        ("CUDA error: uncorrectable ECC error encountered" + ASYNC, 214, Action.QUARANTINE_GPU),
        ("CUDA error: uncorrectable NVLink error detected during the execution" + ASYNC, 220, Action.QUARANTINE_GPU),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable" + ASYNC, 46, Action.QUARANTINE_GPU),
        ("CUDA error: no CUDA-capable device is detected" + ASYNC, 100, Action.QUARANTINE_NODE),
        ("CUDA error: system not yet initialized" + ASYNC, 802, Action.QUARANTINE_NODE),
        ("CUDA driver error: unknown error", 999, Action.QUARANTINE_GPU),
        (NCCL.format("700 "), 700, Action.RESPAWN),
        (NCCL.format(""), 700, Action.RESPAWN),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`", None, Action.RESPAWN),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", None, Action.RESPAWN),
    ],
)
def test_the_devices_own_errors(text: str, code: int | None, action: Action) -> None:
    found = classify(text)
    assert found is not None and (found.code, found.action) == (code, action)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: device-side assert triggered" + ASYNC,
        "CUDA error: invalid configuration argument" + ASYNC,
        "CUDA error: no kernel image is available for execution on the device" + ASYNC,
        "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(...)`",
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB",
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "an illegal memory access was encountered",  # nobody says that it was CUDA
        "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242",
    ],
)
def test_what_the_script_would_do_again_is_its_own(text: str) -> None:
    assert classify(text) is None


def test_the_code_that_torch_gives_counts_more_than_the_words() -> None:
    assert classify("CUDA error: in another language", 700) is not None
    assert classify("CUDA error: an illegal memory access was encountered", 710) is None


def test_the_xids_that_show_themselves_so_are_named() -> None:
    assert classify("CUDA error: an illegal memory access was encountered") == DeviceError(
        code=700, xids=(13, 31, 43), action=Action.RESPAWN
    )


def _wrapped() -> None:
    try:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure" + ASYNC)
    except RuntimeError as error:
        raise ValueError("training failed") from error


def _while_handled() -> None:
    try:
        raise RuntimeError("CUDA error: unspecified launch failure" + ASYNC)
    except RuntimeError:
        dict[str, int]()["loss"]  # the handler has a mistake of its own, whose context still tells


def _not_torchs() -> None:
    raise ValueError("CUDA error: unspecified launch failure")


@pytest.mark.parametrize(("raises", "device"), [(_wrapped, True), (_while_handled, True), (_not_torchs, False)])
def test_a_chain_of_exceptions_is_looked_through(raises: Callable[[], None], device: bool) -> None:
    with pytest.raises((ValueError, KeyError)) as raised:
        raises()
    assert (of_exception(raised.value) is not None) is device


def test_every_entry_of_the_catalogue_has_an_action() -> None:
    assert len(catalogue()) == 110
    for number, action in ((13, "respawn"), (45, "nothing"), (79, "quarantine_node"), (95, "quarantine_gpu")):
        assert catalogue()[number].action == action
    assert catalogue()[172].action is Action.QUARANTINE_GPU  # of the whole GPU, and NVIDIA names no action
