"""What a script does to its protected state at a wrong time, as far as it shows while the script trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from phoenix_core import fsdp
from phoenix_core.advice import COPIES, EARLY_CHANGE, SWAPPED, say_once
from phoenix_core.between import changed_since, versions
from phoenix_core.communicator import BACKEND
from phoenix_core.errors import UsageError
from phoenix_core.packing import flat_bytes
from phoenix_core.snapshot import Protected

_c10d: Any = dist.distributed_c10d
"""What torch's own type stubs leave out."""
SAMPLE_BYTES: Final = 16
LOOKS: Final = 5
"""In how many first steps the samples are looked at before the optimizer too: on a device that waits for it."""


class Samples:
    """A few bytes of each of some tensors: torch does not count what is written by `.data`, and copies are dear.

    Taken at the beginning of each step, so on the tensors' devices, without waiting for them, by one small kernel for
    each device.
    """

    def __init__(self) -> None:
        self._at: list[int] = []
        self._views: dict[torch.device, dict[int, torch.Tensor]] = {}
        self._taken: dict[torch.device, torch.Tensor] = {}

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        self._taken = self._read(tensors)

    def differing(self, tensors: Sequence[torch.Tensor]) -> set[int]:
        """The numbers of those whose bytes are others than when they were taken, wherever they lie by now."""
        before, found = self._taken, set()
        for device, now in self._read(tensors).items():
            views = self._views[device]
            sizes = [view.numel() for view in views.values()]
            pairs = zip(before[device].cpu().split(sizes), now.cpu().split(sizes), strict=True)
            found |= {number for number, (old, new) in zip(views, pairs, strict=True) if not torch.equal(old, new)}
        return found

    def _read(self, tensors: Sequence[torch.Tensor]) -> dict[torch.device, torch.Tensor]:
        at = [tensor.data_ptr() for tensor in tensors]
        if at != self._at:  # else the views of the step before are good: making them takes longer than all the rest
            self._at, self._views = at, {}
            for number, tensor in enumerate(tensors):
                if tensor.numel():
                    content = flat_bytes(tensor)
                    middle = (tensor.numel() // 2) * tensor.element_size()
                    self._views.setdefault(tensor.device, {})[number] = content[middle : middle + SAMPLE_BYTES]
        return {device: torch.cat(list(views.values())) for device, views in self._views.items()}


class Misuse:
    """Looks at what a script has protected: before the loop, and at some instants of each step."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._versions: list[int] = []
        self._groups = 0
        self._names: list[str] = []
        self._left_by: int | None = None
        self._ddp_modules: list[DistributedDataParallel] = []
        self._samples: Samples | None = None
        self._looks = LOOKS

    def at_loop(self, world_size: int) -> None:
        """Name what makes every rank of a DDP job send its whole state, and need not.

        Raises UsageError for a process group that is not the runtime's.
        """
        if world_size > 1 and (other := _other_backends()):
            raise UsageError(
                "leave backend= out of new_group(): a group of torch's own does not heal with the others. CPU tensors "
                f'go through gloo, CUDA tensors through NCCL all the same. (Found: backend="{min(other)}")'
            )
        self._groups, self._names = self._number_of_groups(), self._parameter_names()
        self._ddp_modules = self._protected.ddp_modules()
        self._samples = Samples() if world_size > 1 else None
        if copies := self._protected.needless_copies(world_size):
            say_once(COPIES.format(", ".join(f"protect({name}=...)" for name in copies)))

    def at_step(self) -> None:
        """A step begins. Raises UsageError where an optimizer or a module has been given other parameters."""
        self._versions = versions(self._protected.listed_parameters())
        if self._samples is not None:
            self._samples.take(self._parts())
        if self._number_of_groups() != self._groups:
            raise UsageError(
                "an optimizer has been given more parameter groups: a replacement could not know them. Make all groups "
                "before the loop over steps(), with lr=0 for those that are trained later"
            )
        if others := set(self._parameter_names()) ^ set(self._names):
            raise UsageError(
                f"the model's parameters are not those that it had before the loop: {min(others)} came or went. A "
                "replacement could not know: add, remove, prune or reparametrise before the loop over steps()"
            )

    def at_backward(self) -> None:
        """The first backward pass of the step begins.

        Raises UsageError where it adds to gradients of another step, and where ranks may run different numbers of them.
        """
        if any(module._join_config.enable for module in self._ddp_modules):
            raise UsageError(
                "torch.distributed.algorithms.Join (or join() of a DDP module) lets ranks run different numbers of "
                "backward passes, which cannot be recovered. Remove it and give each rank as many batches in a step as "
                "the others; steps(n) are the same steps for all ranks"
            )
        left_by, self._left_by = self._left_by, None
        if left_by is not None and self._has_gradients():
            raise self._no_optimizer(left_by)

    def at_break(self) -> bool:
        """The step broke before its optimizer: whether parameters were changed in a way that torch does not count.

        What it counts is another matter (see EARLY_CHANGE): a script that does so in each step goes on.
        """
        if self._samples is None:
            return False
        counted = changed_since(self._versions, self._protected.listed_parameters())
        changed = bool(self._samples.differing(self._parts()) - counted)
        if changed:
            say_once(SWAPPED)
        return changed

    def at_optimizer(self, *, whole: bool) -> None:
        """The first optimizer of the step is about to run; `whole`: a step that breaks is begun from a snapshot."""
        if whole:
            return
        self._looks -= 1
        unseen = self._looks >= 0 and self._samples is not None and self._samples.differing(self._parts())
        if self._changed() or unseen:
            say_once(EARLY_CHANGE)

    def at_end(self, step: int) -> None:
        """The step ended, and none of its optimizers ran: a scaler or the script skipped them, or they are unknown.

        Raises UsageError for these; that gradients were left for the next step shows only there.
        """
        if self._has_gradients():
            if any(parameter.requires_grad for parameter in self._changed()):
                raise self._no_optimizer(step)
            self._left_by = step

    def _has_gradients(self) -> bool:
        return any(p.grad is not None and bool(p.grad.any()) for p in self._protected.parameters())

    def _no_optimizer(self, step: int) -> UsageError:
        return UsageError(
            f"step {step} left gradients but called no protected optimizer: accumulate inside one `with step`, and "
            "hand every optimizer to protect()"
        )

    def _number_of_groups(self) -> int:
        return sum(len(optimizer.param_groups) for optimizer in self._protected.optimizers().values())

    def _parameter_names(self) -> list[str]:
        modules = self._protected.modules().items()
        return [f"{name}.{path}" for name, module in modules for path, _ in module.named_parameters()]

    def _parts(self) -> list[torch.Tensor]:
        return [fsdp.local(parameter) for parameter in self._protected.listed_parameters()]

    def _changed(self) -> list[torch.nn.Parameter]:
        """The parameters that were changed in place since the step began."""
        parameters = self._protected.listed_parameters()
        return [parameters[i] for i in changed_since(self._versions, parameters)]


def _other_backends() -> set[str]:
    """Of the groups that this process has made beside the world."""
    groups = [group for group in _c10d._world.pg_map if group is not dist.group.WORLD]
    return {str(dist.get_backend(group)) for group in groups} - {BACKEND}
