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
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from phoenix_core import carried, ddp, fsdp, optimizers, pipeline, rng
from phoenix_core.buffers import Buffers, Key
from phoenix_core.errors import SnapshotUnavailable, UsageError
from phoenix_core.gradients import Gradients, form_of
from phoenix_core.late import Told
from phoenix_core.packing import content_of, flat_bytes, pack, rooms
from phoenix_core.pipeline import ScheduleState
from phoenix_core.twins import twins_of


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
    _buffers: Buffers = field(default_factory=Buffers)
    _listed: list[torch.nn.Parameter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gradients = Gradients(self.listed_parameters)
        carried.watch_scalers()

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
                self._buffers.add(name, value)
        self._listed = []

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
        trained = {
            id(parameter) for optimizer in self.optimizers().values() for _, parameter in optimizers.numbered(optimizer)
        }
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
        """By name, with those that they hold: of this rank's part, of the fast weights."""
        return dict(found for name, value in self.objects.items() for found in optimizers.found_in(name, value))

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for module in self.modules().values():
            yield from module.parameters()

    def listed_parameters(self) -> list[torch.nn.Parameter]:
        """The same, found once: walking through modules takes long, and after `check` they stay what they are."""
        self._listed = self._listed or list(self.parameters())
        return self._listed

    def check(self, world_size: int) -> None:
        """Raises UsageError for what cannot be restored, before the first step rather than at the first failure."""
        for key, tensor in (*self.tensors(), *self.buffers()):
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
            if any(id(parameter) not in known for _, parameter in optimizers.numbered(optimizer)):
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

    # ---------------------------------------------------------------- small state

    def capture_small(self, recorded: Mapping[str, Any]) -> bytes:
        """This rank's own small state, pickled; with what the script has recorded of the step so far."""
        state: dict[str, Any] = {"random": rng.capture(), "recorded": dict(recorded)}
        state["objects"] = {name: value.state_dict() for name, value in self._own().items()}
        state["buffers"], state["extra"] = self._buffers.capture(), self._buffers.extra()
        return pack(state)

    def check_small(self, payload: bytes) -> None:
        """Raises SnapshotUnavailable for a small state, read from somewhere, that is of other objects than these."""
        state = pickle.loads(payload)
        if others := state["objects"].keys() ^ self._own().keys():
            raise SnapshotUnavailable(f"only one of both has the protected object {min(others)!r}")
        self._buffers.check(state["buffers"], state["extra"])

    @torch.no_grad()
    def load_small(self, payload: bytes) -> dict[str, Any]:
        """Put it back; returns what was recorded of the step that led to it."""
        state = pickle.loads(payload)
        for name, value in self._own().items():
            value.load_state_dict(state["objects"][name])
        self._buffers.load(state["buffers"])
        self._buffers.load_extra(state["extra"])
        rng.restore(state["random"])  # last: loading the rest may have drawn numbers
        recorded: dict[str, Any] = state["recorded"]
        return recorded

    # ---------------------------------------------------------------- replicated state

    def tensors(self) -> Iterator[tuple[Key, torch.Tensor]]:
        """Every tensor of the replicated state, or this rank's part of it, in an order that all ranks share."""
        for name, module in self.modules().items():
            for path, parameter in module.named_parameters():
                yield (name, "parameter", path), fsdp.local(parameter)
        for name, optimizer in self.optimizers().items():
            yield from optimizers.tensors(name, optimizer)
        for number, kept in self.gradients.at_boundary().items():
            yield ("", "gradient", str(number)), kept

    def buffers(self) -> Iterator[tuple[Key, torch.Tensor]]:
        """Those of all modules, which are this rank's own, and part of the small state."""
        return (((name, "buffer", path), buffer) for (name, path), buffer in self._buffers.named())

    # ---------------------------------------------------------------- what is not a tensor

    def capture_start(self) -> bytes:
        """What a step begins with besides tensors: schedulers, learning rates, modes; pickled.

        A broken step may have changed any of it, on a survivor too.
        """
        return pack(
            {
                "plain": {name: optimizers.plain_state(optimizer) for name, optimizer in self.optimizers().items()},
                "carried": {name: carried.state_of(value) for name, value in self._carried().items()},
                "training": [module.training for root in self.modules().values() for module in root.modules()],
                "gradients": [form_of(parameter) for parameter in self.listed_parameters()],
                "trained": [parameter.requires_grad for parameter in self.listed_parameters()],
                "flags": [ddp.flags(module) for module in self.ddp_modules()],
            }
        )

    def load_start(self, payload: bytes) -> None:
        """Put it back, and in place of what a broken step left in the gradients those of the boundary."""
        start = pickle.loads(payload)
        for name, plain in start["plain"].items():
            optimizers.load_plain_state(self.optimizers()[name], plain)
        for name, value in self._carried().items():
            carried.load_into(value, start["carried"][name])
        for scaler in carried.SCALERS:
            carried.forget_half_a_step(scaler)
        for optimizer in self.optimizers().values():
            carried.forget_scale(optimizer)
        modules = [module for root in self.modules().values() for module in root.modules()]
        for module, training in zip(modules, start["training"], strict=True):
            module.training = training
        for parameter, trained in zip(self.listed_parameters(), start["trained"], strict=True):
            parameter.requires_grad_(trained)
        self.gradients.put_back(start["gradients"])
        for wrapped, flags in zip(self.ddp_modules(), start["flags"], strict=True):
            ddp.set_flags(wrapped, flags)

    # ---------------------------------------------------------------- replicated state for a peer

    def describe(
        self, layouts: list[ddp.Layout], start: bytes, told: Told | None = None
    ) -> tuple[bytes, Iterator[memoryview]]:
        """The replicated state for a peer: a pickled description, and the contents of its tensors in order.

        `layouts`: buckets of each DDP module's next step; `start`: see `capture_start`; `told`: see late.py.
        """
        listed = list(self.tensors())
        description = {
            "tensors": [(key, tensor.dtype, tuple(tensor.shape)) for key, tensor in listed],
            "layouts": layouts,
            "start": start,
            "told": told or Told(),
        }
        return pickle.dumps(description), (content_of(tensor) for _, tensor in listed)

    def place(self, described: bytes) -> tuple[dict[str, Any], Iterator[memoryview]]:
        """Make room for a twin's state: its description, and what each of its tensors goes to (see packing.rooms).

        Raises SnapshotUnavailable where the twin's state does not fit this rank's objects.
        """
        description = pickle.loads(described)
        return description, rooms(self.targets_for(description["tensors"]))

    def targets_for(self, listed: list[tuple[Key, torch.dtype, tuple[int, ...]]]) -> list[torch.Tensor]:
        """Each of the tensors; what is not there yet, and may come and go, is made. Raises SnapshotUnavailable."""
        self.gradients.forget()
        own = dict(self.tensors())
        for name, kind, *rest in own.keys() - {key for key, _, _ in listed}:
            if kind == "state":
                optimizers.forget(self.optimizers()[name], *rest)
        targets = []
        for key, dtype, shape in listed:
            there = own.get(key)
            tensor = self._made(key, dtype, shape) if _differs(there, dtype, shape) else there
            if tensor is None or _differs(tensor, dtype, shape):
                found = "nothing" if there is None else f"{there.dtype} {tuple(there.shape)}"
                raise SnapshotUnavailable(f"{'.'.join(key)} comes as {dtype} {shape}, this rank has {found}")
            targets.append(tensor)
        return targets

    def _made(self, key: Key, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Room for a tensor that the twin has and this rank has not, or has in another form; None for a parameter."""
        name, kind, *rest = key
        if kind == "state":
            place, entry = rest
            return optimizers.new_tensor(self.optimizers()[name], place, entry, dtype, shape)
        return self.gradients.room(int(rest[0]), dtype) if kind == "gradient" else None

    def digests(self) -> tuple[str, str]:
        """SHA-256 over parameters and optimizer state (equal on all ranks), and over buffers (a rank's own)."""
        replicated, own = hashlib.sha256(), hashlib.sha256()
        # Not kept gradients: not all ranks know at the same time which are kept.
        shared = [(key, tensor) for key, tensor in self.tensors() if key[1] != "gradient"]
        for total, tensors in ((replicated, shared), (own, self.buffers())):
            for key, tensor in tensors:
                total.update("/".join(key).encode())
                total.update(content_of(tensor.detach().contiguous()))
        return replicated.hexdigest(), own.hexdigest()


def _differs(tensor: torch.Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != shape
