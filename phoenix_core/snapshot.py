"""What belongs to the state of a rank, how it is described, and how it is put back.

Two kinds. *Replicated* state (parameters, buffers, optimizer, scheduler, scaler) is the same on every rank of a
DDP job: it comes from a live twin and never travels otherwise. *Small* state (random generators, data
position, buffers that the forward pass changed) is a rank's own: it goes to a holder at every step.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from phoenix_core import carried, ddp, fsdp, pipeline, rng
from phoenix_core.errors import SnapshotUnavailable, UsageError
from phoenix_core.late import Changed
from phoenix_core.packing import content_of, contents_by_name, fill, flat_bytes, pack, rooms
from phoenix_core.pipeline import ScheduleState
from phoenix_core.twins import twins_of

ALWAYS_SENT_BYTES: Final = 64 * 1024
"""Buffers up to this size go into the small state unseen; larger ones only once they differ from the start."""

Key = tuple[str, ...]


def _is_replicated(value: object) -> bool:
    scheduler = torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau
    others = torch.amp.GradScaler | ScheduleState
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer | others | scheduler)


def _is_zero(value: object) -> bool:
    """A ZeroRedundancyOptimizer, whose module a job that uses none does not import."""
    return type(value).__name__ == "ZeroRedundancyOptimizer"


@dataclass
class Protected:
    """The objects that a script has handed over, by the names it gave them."""

    objects: dict[str, Any] = field(default_factory=dict)
    _buffers_at_start: dict[Key, torch.Tensor] = field(default_factory=dict)
    _listed: list[torch.nn.Parameter] = field(default_factory=list)
    _scalers: list[torch.amp.GradScaler] = field(default_factory=list)

    def add(self, objects: Mapping[str, Any]) -> None:
        """Raises UsageError for an object that can be neither saved nor restored."""
        for name, given in objects.items():
            value = ScheduleState(given) if pipeline.is_schedule(given) else given
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise UsageError(
                    f"protect({name}=...): a {type(value).__name__} has no state_dict() and load_state_dict(); "
                    "give it both, or protect the object that holds its state"
                )
            if name in self.objects:
                raise UsageError(f"protect({name}=...): the name is taken")
            self.objects[name] = value
            if isinstance(value, torch.nn.Module):
                for key, buffer in self._module_buffers(name, value):
                    self._buffers_at_start[key] = buffer.detach().clone()

    # ---------------------------------------------------------------- views

    def modules(self) -> dict[str, torch.nn.Module]:
        return {name: value for name, value in self.objects.items() if isinstance(value, torch.nn.Module)}

    def ddp_modules(self) -> list[DistributedDataParallel]:
        found = [m for root in self.modules().values() for m in root.modules()]
        return [module for module in found if isinstance(module, DistributedDataParallel)]

    @property
    def sharded(self) -> bool:
        """Whether any rank holds a part of a parameter that its shard group holds once."""
        return any(fsdp.is_sharded(parameter) for parameter in self.parameters())

    def has_own_state(self, world_size: int) -> bool:
        """Whether a rank may hold state of which not every other rank is a live twin."""
        return self.sharded or bool(self._alone(world_size)) or any(_is_zero(value) for value in self.objects.values())

    def _alone(self, world_size: int) -> set[int]:
        """Trained parameters that no DDP of the whole world keeps equal on all ranks, by their ids."""
        replicated = [module for module in self.ddp_modules() if module.process_group.size() == world_size]
        twins = {id(parameter) for module in replicated for parameter in module.parameters()}
        return {id(parameter) for parameter in self.parameters() if parameter.requires_grad} - twins

    def needless_copies(self, world_size: int) -> list[str]:
        """Modules that no optimizer trains, if ranks have state of their own (see above) for these alone."""
        alone = self._alone(world_size)
        trained = {id(parameter) for optimizer in self.optimizers().values() for _, parameter in _numbered(optimizer)}
        if self.sharded or alone & trained or any(_is_zero(value) for value in self.objects.values()):
            return []
        of = {name: {id(parameter) for parameter in module.parameters()} for name, module in self.modules().items()}
        return [name for name, parameters in of.items() if parameters & alone and not parameters & trained]

    def twins(self, rank: int) -> frozenset[int]:
        """The other ranks whose parameters and optimizer state are those of `rank`, as far as their layout tells."""
        if any(_is_zero(value) for value in self.objects.values()):
            return frozenset()
        wrapped = {
            id(parameter): frozenset(dist.get_process_group_ranks(module.process_group))
            for module in self.ddp_modules()
            for parameter in module.parameters()
        }
        return twins_of(
            rank,
            [
                fsdp.same_part(parameter, rank) or wrapped.get(id(parameter), frozenset({rank}))
                for parameter in self.parameters()
            ],
        )

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """By name; a ZeroRedundancyOptimizer besides itself as the optimizer of this rank's part."""
        found = {}
        for name, value in self.objects.items():
            if isinstance(value, torch.optim.Optimizer):
                found[name] = value
            if _is_zero(value):
                found[f"{name}.part"] = value.optim
        return found

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for module in self.modules().values():
            yield from module.parameters()

    def listed_parameters(self) -> list[torch.nn.Parameter]:
        """The same, found once: walking through modules takes long, and after `check` they stay what they are."""
        self._listed = self._listed or list(self.parameters())
        return self._listed

    def check(self, world_size: int) -> None:
        """Raises UsageError for what cannot be restored, before the first step rather than at the first failure."""
        self._scalers = carried.scalers()
        for key, tensor in self.tensors():
            try:
                flat_bytes(tensor)
                if tensor.device.type not in ("cpu", "cuda"):
                    raise ValueError(f"a tensor on {tensor.device} cannot be protected, only on CPU and CUDA")
            except ValueError as error:
                raise UsageError(f"protect({key[0]}=...): {'.'.join(key[2:])}: {error}") from None
        for name, value in self.objects.items():
            if _is_zero(value) and not hasattr(value, "optim"):
                raise UsageError(f"protect({name}=...): overlap_with_ddp makes the optimizer too late to protect it")
        if world_size > 1 and not self.modules():
            raise UsageError(
                "steps(): no module is protected; call protect(model=..., optimizer=..., ...) before the loop"
            )
        schedules = [value for value in self.objects.values() if isinstance(value, ScheduleState)]
        if world_size > 1:
            pipeline.check(schedules)
        hooks = [ddp.hook_with_memory(module) for module in self.ddp_modules()]
        if world_size > 1 and any(hooks):
            raise UsageError(
                f"protect(): a communication hook has a {max(hooks)} that is not protected: a replacement would send "
                "other gradients than the rank before it; take a hook without state, such as fp16_compress_hook"
            )
        known = {id(parameter) for parameter in self.parameters()}
        for name, optimizer in self.optimizers().items():
            if any(id(parameter) not in known for _, parameter in _numbered(optimizer)):
                raise UsageError(f"protect({name}=...): it changes parameters of a module that is not protected")
        if world_size > 1 and not self.ddp_modules() and not self.sharded and not schedules:
            raise UsageError(
                "protect(): no module is a DistributedDataParallel or sharded by fully_shard(); hand over the wrapped "
                "model, not the one inside it"
            )

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in self.objects.items() if not _is_replicated(value)}

    def _carried(self) -> dict[str, Any]:
        """Replicated objects other than modules and optimizers."""
        tensors = torch.nn.Module | torch.optim.Optimizer
        return {n: v for n, v in self.objects.items() if _is_replicated(v) and not isinstance(v, tensors)}

    @staticmethod
    def _module_buffers(name: str, module: torch.nn.Module) -> Iterator[tuple[Key, torch.Tensor]]:
        for path, buffer in module.named_buffers():
            yield (name, path), buffer

    # ---------------------------------------------------------------- small state

    def capture_small(self, recorded: Mapping[str, Any]) -> bytes:
        """This rank's own small state, pickled; with what the script has recorded of the step so far."""
        state: dict[str, Any] = {"random": rng.capture(), "recorded": dict(recorded)}
        state["objects"] = {name: value.state_dict() for name, value in self._own().items()}
        # As bytes: pickling a tensor costs 50 us each, and a ResNet has 150 buffers.
        state["buffers"] = contents_by_name(dict(self._changed_buffers()))
        return pack(state)

    def _changed_buffers(self) -> Iterator[tuple[Key, torch.Tensor]]:
        for name, module in self.modules().items():
            for key, buffer in self._module_buffers(name, module):
                start = self._buffers_at_start.get(key)  # None: registered after protect()
                if start is None or buffer.nbytes <= ALWAYS_SENT_BYTES or not torch.equal(buffer, start):
                    yield key, buffer

    @torch.no_grad()
    def load_small(self, payload: bytes) -> dict[str, Any]:
        """Put it back; returns what was recorded of the step that led to it."""
        state = pickle.loads(payload)
        for name, value in self._own().items():
            value.load_state_dict(state["objects"][name])
        buffers = {key: b for name, module in self.modules().items() for key, b in self._module_buffers(name, module)}
        fill([buffers[key] for key in state["buffers"]], b"".join(state["buffers"].values()))
        for key in buffers.keys() & self._buffers_at_start.keys() - state["buffers"].keys():
            buffers[key].copy_(self._buffers_at_start[key])  # what is left out is as it was at the start
        rng.restore(state["random"])  # last: loading the rest may have drawn numbers
        recorded: dict[str, Any] = state["recorded"]
        return recorded

    # ---------------------------------------------------------------- replicated state

    def tensors(self) -> Iterator[tuple[Key, torch.Tensor]]:
        """Every tensor of the state, or this rank's part of it, in an order that is the same on every rank."""
        for name, module in self.modules().items():
            for path, parameter in module.named_parameters():
                yield (name, "parameter", path), fsdp.local(parameter)
            for path, buffer in module.named_buffers():
                yield (name, "buffer", path), buffer
        for name, optimizer in self.optimizers().items():
            for place, parameter in _numbered(optimizer):
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        yield (name, "state", place, str(key)), fsdp.local(value)

    # ---------------------------------------------------------------- what is not a tensor

    def capture_start(self) -> bytes:
        """What a step begins with besides tensors: schedulers, learning rates, modes; pickled.

        A broken step may have changed any of it, on a survivor too.
        """
        return pack(
            {
                "plain": {name: _plain_state(optimizer) for name, optimizer in self.optimizers().items()},
                "carried": {name: carried.state_of(value) for name, value in self._carried().items()},
                "training": [module.training for root in self.modules().values() for module in root.modules()],
                "zeroed": [parameter.grad is not None for parameter in self.parameters()],
                "trained": [parameter.requires_grad for parameter in self.parameters()],
                "flags": [ddp.flags(module) for module in self.ddp_modules()],
            }
        )

    def load_start(self, payload: bytes) -> None:
        """Put it back, and drop what the broken step left in the gradients."""
        start = pickle.loads(payload)
        for name, plain in start["plain"].items():
            _load_plain_state(self.optimizers()[name], plain)
        for name, value in self._carried().items():
            carried.load_into(value, start["carried"][name])
        for scaler in self._scalers:
            carried.forget_half_a_step(scaler)
        for optimizer in self.optimizers().values():
            carried.forget_scale(optimizer)
        modules = [module for root in self.modules().values() for module in root.modules()]
        for module, training in zip(modules, start["training"], strict=True):
            module.training = training
        for parameter, trained, zeroed in zip(self.parameters(), start["trained"], start["zeroed"], strict=True):
            parameter.requires_grad_(trained)
            parameter.grad = torch.zeros_like(parameter) if zeroed else None
        for wrapped, flags in zip(self.ddp_modules(), start["flags"], strict=True):
            ddp.set_flags(wrapped, flags)

    # ---------------------------------------------------------------- replicated state for a peer

    def describe(
        self, layouts: list[ddp.Layout], start: bytes, late: Changed | None = None
    ) -> tuple[bytes, Iterator[memoryview]]:
        """The replicated state for a peer: a pickled description, and the contents of its tensors in order.

        `layouts`: buckets of each DDP module's next step; `start`: see `capture_start`; `late`: see late.py.
        """
        listed = list(self.tensors())
        description = {
            "tensors": [(key, tensor.dtype, tuple(tensor.shape)) for key, tensor in listed],
            "layouts": layouts,
            "start": start,
            "late": late,
        }
        return pickle.dumps(description), (content_of(tensor) for _, tensor in listed)

    def place(self, described: bytes) -> tuple[dict[str, Any], Iterator[memoryview]]:
        """Make room for a twin's state: its description, and what each of its tensors goes to (see packing.rooms).

        Raises SnapshotUnavailable where the twin's state does not fit this rank's objects.
        """
        description = pickle.loads(described)
        return description, rooms(self.targets_for(description["tensors"]))

    def targets_for(self, listed: list[tuple[Key, torch.dtype, tuple[int, ...]]]) -> list[torch.Tensor]:
        """Each of the tensors; optimizer state that is not there yet is made. Raises SnapshotUnavailable."""
        own = dict(self.tensors())
        self._forget_states(set(own) - {key for key, _, _ in listed})
        targets = []
        for key, dtype, shape in listed:
            tensor = own.get(key)
            if tensor is None and key[1] == "state":
                tensor = self._new_state(key, dtype, shape)
            if tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != shape:
                found = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
                raise SnapshotUnavailable(f"{'.'.join(key)} comes as {dtype} {shape}, this rank has {found}")
            targets.append(tensor)
        return targets

    def _forget_states(self, keys: set[Key]) -> None:
        """Drop optimizer state that the twin does not have."""
        for name, kind, *rest in keys:
            if kind == "state":
                parameter = dict(_numbered(self.optimizers()[name]))[rest[0]]
                del self.optimizers()[name].state[parameter][rest[1]]

    def _new_state(self, key: Key, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        name, _, place, entry = key
        parameter = dict(_numbered(self.optimizers()[name]))[place]
        local = fsdp.local(parameter)
        same = shape == tuple(local.shape)
        device = _device_of_state(self.optimizers()[name], place, same)
        # In the parameter's order in memory, as optimizers make it: what comes is the twin's memory as it lies there.
        tensor = torch.empty_like(local if same else torch.empty(shape), dtype=dtype, device=device)
        self.optimizers()[name].state[parameter][entry] = fsdp.like(parameter, tensor) if same else tensor
        return tensor

    def digests(self) -> tuple[str, str]:
        """SHA-256 over parameters and optimizer state (equal on all ranks), and over buffers (a rank's own)."""
        replicated, own = hashlib.sha256(), hashlib.sha256()
        for key, tensor in self.tensors():
            total = own if key[1] == "buffer" else replicated
            total.update("/".join(key).encode())
            total.update(content_of(tensor.detach().contiguous()))
        return replicated.hexdigest(), own.hexdigest()


def _numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The optimizer's parameters, named by group and place: names that all ranks share."""
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            yield f"{g}.{i}", parameter


def _device_of_state(optimizer: torch.optim.Optimizer, place: str, like_parameter: bool) -> torch.device:
    """Where the optimizer keeps an entry of its state: a counter on the CPU, unless its kernels read it."""
    group, index = map(int, place.split("."))
    settings = optimizer.param_groups[group]
    with_parameter = like_parameter or settings.get("fused") or settings.get("capturable")
    return fsdp.local(settings["params"][index]).device if with_parameter else torch.device("cpu")


def _plain_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    entries = {
        place: {k: v for k, v in optimizer.state.get(parameter, {}).items() if not isinstance(v, torch.Tensor)}
        for place, parameter in _numbered(optimizer)
    }
    return {"groups": groups, "entries": {place: entry for place, entry in entries.items() if entry}}


def _load_plain_state(optimizer: torch.optim.Optimizer, plain: Mapping[str, Any]) -> None:
    for group, saved in zip(optimizer.param_groups, plain["groups"], strict=True):
        for name, value in saved.items():
            if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                group[name].copy_(value)  # a learning rate that the script or a graph has a hold of
            else:
                group[name] = value
    for place, parameter in _numbered(optimizer):
        if place in plain["entries"]:
            optimizer.state[parameter].update(plain["entries"][place])
