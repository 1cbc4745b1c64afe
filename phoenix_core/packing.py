"""Small states as bytes that are equal whenever the states are.

Plain pickle writes a tensor with the address of its storage, so equal states would look changed at every step.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch

K = TypeVar("K")


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor, on whatever device, as a uint8 tensor of one dimension, without a copy.

    Not a view of the shape, since a dense tensor may lie in another order (channels_last). Raises ValueError for a
    tensor with gaps or overlaps.
    """
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has gaps in memory and cannot be protected")
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The same of a CPU tensor as a writable buffer."""
    if not tensor.numel():
        return memoryview(bytearray())
    return memoryview(cast("Any", flat_bytes(tensor).numpy()))


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" or not tensor.numel()


def content_of(tensor: torch.Tensor) -> memoryview:
    """What lies in a tensor's memory, for reading: of one on a device a copy."""
    if _on_host(tensor):
        return memory_of(tensor)
    return memory_of(flat_bytes(tensor).cpu())


def contents_of(tensors: Iterable[torch.Tensor]) -> bytes:
    """The contents of all of them in a row; what lies on a device comes in one transfer, since each waits for it.

    Of a copy: torch lets nobody resize a tensor any more whose memory somebody else has seen.
    """
    parts = [tensor for tensor in tensors if tensor.numel()]
    alike = len({part.device for part in parts}) == 1
    if not alike:
        return b"".join(contents_of([part]) for part in parts)
    return bytes(content_of(torch.cat([flat_bytes(part) for part in parts])))


def contents_by_name(tensors: Mapping[K, torch.Tensor]) -> dict[K, bytes]:
    """The contents of each."""
    whole, found, begin = contents_of(tensors.values()), {}, 0
    for name, tensor in tensors.items():
        found[name] = whole[begin : begin + tensor.nbytes]
        begin += tensor.nbytes
    return found


def rooms(tensors: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """One buffer for each tensor, to be filled before the next is asked for.

    Of a CPU tensor its memory; of one on a device a buffer whose content goes there when the next is asked for. So what
    is still missing when somebody stops in between was never on the device.
    """
    for tensor in tensors:
        if _on_host(tensor):
            yield memory_of(tensor)
        else:
            staged = torch.empty(tensor.nbytes, dtype=torch.uint8)
            yield memory_of(staged)
            flat_bytes(tensor).copy_(staged)


def fill(tensors: Iterable[torch.Tensor], data: bytes | memoryview) -> None:
    """Write `data`, the contents of all the tensors in a row."""
    offset = 0
    for room in rooms(tensors):
        room[:] = data[offset : offset + len(room)]
        offset += len(room)


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...], device: str = "cpu") -> torch.Tensor:
    result = torch.empty(shape, dtype=dtype, device=device)
    fill([result], data)
    return result


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and value.device.type in ("cpu", "cuda") and value.is_contiguous():
            rebuild: Callable[..., torch.Tensor] = _tensor
            # "cuda" without a number: whoever takes the rank over may compute on another one.
            device = () if value.device.type == "cpu" else (value.device.type,)
            return rebuild, (bytes(content_of(value)), value.dtype, tuple(value.shape), *device)
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
