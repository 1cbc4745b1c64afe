"""Small states as bytes that are equal whenever the states are.

Plain pickle writes a tensor with the address of its storage, so equal states would look changed at every step.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, cast

import torch


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense CPU tensor as a uint8 tensor of one dimension, without a copy.

    Not a view of the shape, since a dense tensor may lie in another order (channels_last). Raises ValueError for a
    tensor with gaps or overlaps.
    """
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has gaps in memory and cannot be protected")
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The same as a writable buffer."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(cast("Any", flat_bytes(tensor).numpy()))


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    result = torch.empty(shape, dtype=dtype)
    memory_of(result)[:] = data
    return result


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.is_contiguous():
            rebuild: Callable[..., torch.Tensor] = _tensor
            return rebuild, (bytes(memory_of(value)), value.dtype, tuple(value.shape))
        return NotImplemented


def pack(value: object) -> bytes:
    """Pickle, with tensors as their bytes; `pickle.loads` reads it."""
    try:
        return _dumped(value, fast=True)
    except (ValueError, RecursionError):  # something in it contains itself
        return _dumped(value, fast=False)


def _dumped(value: object, *, fast: bool) -> bytes:
    """`fast`: what occurs twice is written twice, so that it does not matter whether two equal objects are one."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.fast = fast
    pickler.dump(value)
    return buffer.getvalue()
