"""What optimizers hold besides parameters: states by parameter, groups, and other optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from phoenix_core import fsdp


def found_in(name: str, value: object, around: tuple[object, ...] = ()) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """`value`, if it is an optimizer, and those that it holds (of a rank's part, of fast weights), with names.

    One that only passes on what another does was never initialised as an optimizer, and has no state of its own.
    `around`: those that hold `value`, which it may know in turn.
    """
    if not isinstance(value, torch.optim.Optimizer) or any(value is outer for outer in around):
        return
    if "_optimizer_step_pre_hooks" in vars(value):
        yield name, value
    for attribute, inner in vars(value).items():
        yield from found_in(f"{name}.{attribute}", inner, (*around, value))


def numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The optimizer's parameters, named by group and place: names that all ranks share."""
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            yield f"{g}.{i}", parameter


def tensors(name: str, optimizer: torch.optim.Optimizer) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The tensors of its state, or this rank's part of them, by names that all ranks share."""
    for place, parameter in numbered(optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield (name, "state", place, str(key)), fsdp.local(value)


def forget(optimizer: torch.optim.Optimizer, place: str, entry: str) -> None:
    """Drop a tensor of its state."""
    del optimizer.state[dict(numbered(optimizer))[place]][entry]


def new_tensor(
    optimizer: torch.optim.Optimizer, place: str, entry: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Make a tensor of its state, of which this rank's part is returned."""
    parameter = dict(numbered(optimizer))[place]
    local = fsdp.local(parameter)
    same = shape == tuple(local.shape)
    device = _device_of_state(optimizer, place, same)
    # In the parameter's order in memory, as optimizers make it: what comes is the twin's memory as it lies there.
    tensor = torch.empty_like(local if same else torch.empty(shape), dtype=dtype, device=device)
    optimizer.state[parameter][entry] = fsdp.like(parameter, tensor) if same else tensor
    return tensor


def _device_of_state(optimizer: torch.optim.Optimizer, place: str, like_parameter: bool) -> torch.device:
    """Where the optimizer keeps an entry of its state: a counter on the CPU, unless its kernels read it."""
    group, index = map(int, place.split("."))
    settings = optimizer.param_groups[group]
    with_parameter = like_parameter or settings.get("fused") or settings.get("capturable")
    return fsdp.local(settings["params"][index]).device if with_parameter else torch.device("cpu")


def plain_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What is not a tensor of a parameter's state: also what is kept of all parameters, under names of its own."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    entries = {
        place: {k: v for k, v in optimizer.state.get(parameter, {}).items() if not isinstance(v, torch.Tensor)}
        for place, parameter in numbered(optimizer)
    }
    shared = {name: value for name, value in optimizer.state.items() if not isinstance(name, torch.Tensor)}
    return {"groups": groups, "entries": {place: entry for place, entry in entries.items() if entry}, "shared": shared}


def load_plain_state(optimizer: torch.optim.Optimizer, plain: Mapping[str, Any]) -> None:
    for group, saved in zip(optimizer.param_groups, plain["groups"], strict=True):
        _update(group, saved)
    shared = plain.get("shared", {})
    for name in [n for n in optimizer.state if not isinstance(n, torch.Tensor) and n not in shared]:
        del optimizer.state[name]
    _update(optimizer.state, shared)
    for place, parameter in numbered(optimizer):
        saved, state = plain["entries"].get(place, {}), optimizer.state.get(parameter, {})
        for key in [k for k, value in state.items() if not isinstance(value, torch.Tensor) and k not in saved]:
            del state[key]
        if saved:
            optimizer.state[parameter].update(saved)
        elif parameter in optimizer.state and not state:
            del optimizer.state[parameter]  # an optimizer takes an empty state for one that it has begun


def _update(into: MutableMapping[Any, Any], saved: Mapping[Any, Any]) -> None:
    for name, value in saved.items():
        there = into.get(name)
        if isinstance(value, torch.Tensor) and isinstance(there, torch.Tensor) and there.shape == value.shape:
            there.copy_(value)  # a learning rate that the script or a graph has a hold of
        elif isinstance(value, dict) and isinstance(there, dict):
            for gone in there.keys() - value.keys():
                del there[gone]
            _update(there, value)
        else:
            into[name] = value
