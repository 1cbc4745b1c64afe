"""FSDP2 (`fully_shard`) after a broken step: the one place that knows its private parts.

An exception in mid forward or backward leaves parameters gathered, gradients half reduced and flags set. Without the
reset below the next step runs and is silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.tensor import DTensor

from phoenix_core import twins


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this rank holds a part of the tensor that no rank of its own shard group has."""
    return isinstance(tensor, DTensor) and any(placement.is_shard() for placement in tensor.placements)


def same_part(tensor: torch.Tensor, rank: int) -> frozenset[int] | None:
    """The ranks that have the same part of it as `rank`, itself among them; None where it is not distributed."""
    if not isinstance(tensor, DTensor):
        return None
    mesh = tensor.device_mesh.mesh
    replicated = [placement.is_replicate() for placement in tensor.placements]
    return twins.same_part(rank, mesh.flatten().tolist(), tuple(mesh.shape), replicated)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of the tensor that lies in this process."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def like(template: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor distributed as `template`, whose local part is `part`."""
    if not isinstance(template, DTensor):
        return part
    return DTensor.from_local(
        part,
        template.device_mesh,
        template.placements,
        run_check=False,
        shape=template.shape,
        stride=template.stride(),
    )


def _states(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    for root in modules:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                yield module._get_fsdp_state()


def reset(modules: Iterable[torch.nn.Module]) -> None:
    """Bring every FSDP2 state back to where it is between two steps: sharded, idle, nothing pending."""
    for state in _states(modules):
        if state._is_root is None:
            continue  # never ran: a spare's model that was superseded before its first step
        state._training_state = TrainingState.IDLE
        state._modules_to_run_forward.clear()
        context, comm = state._state_ctx, state._comm_ctx
        context.iter_forward_root = None
        context.post_backward_final_callback_queued = False
        comm.all_gather_state = None
        comm.reduce_scatter_states.clear()
        comm.post_forward_order.clear()
        comm._last_post_reduce_events = {}
        for group in state._fsdp_param_groups:
            _reset_group(group)


def _reset_group(group: Any) -> None:
    group._training_state = TrainingState.IDLE
    group._all_gather_result = None
    group._post_forward_indices.clear()
    group._post_reduce_event = group._all_reduce_state = group._partial_reduce_output = None
    group._reshard_after_forward_event = None
    for parameter in group.fsdp_params:
        parameter.unsharded_accumulated_grad = None
        if hasattr(parameter, "_unsharded_param"):
            parameter._unsharded_param.grad = None
    group._to_sharded()
