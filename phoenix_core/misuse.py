"""What a script does to its protected state at a wrong time, as far as it shows while the script trains."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from phoenix_core.advice import COPIES, EARLY_CHANGE, say_once
from phoenix_core.between import changed_since, versions
from phoenix_core.errors import UsageError
from phoenix_core.snapshot import Protected


class Misuse:
    """Looks at what a script has protected: before the loop, and at some instants of each step."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._versions: list[int] = []
        self._groups = 0
        self._names: list[str] = []
        self._left_by: int | None = None
        self._ddp_modules: list[DistributedDataParallel] = []

    def at_loop(self, world_size: int) -> None:
        """Name what makes every rank of a DDP job send its whole state, and need not."""
        self._groups, self._names = self._number_of_groups(), self._parameter_names()
        self._ddp_modules = self._protected.ddp_modules()
        if copies := self._protected.needless_copies(world_size):
            say_once(COPIES.format(", ".join(f"protect({name}=...)" for name in copies)))

    def at_step(self) -> None:
        """A step begins. Raises UsageError where an optimizer or a module has been given other parameters."""
        self._versions = versions(self._protected.listed_parameters())
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

    def at_optimizer(self, *, whole: bool) -> None:
        """The first optimizer of the step is about to run; `whole`: a step that breaks is begun from a snapshot."""
        if not whole and self._changed():
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

    def _changed(self) -> list[torch.nn.Parameter]:
        """The parameters that were changed in place since the step began."""
        parameters = self._protected.listed_parameters()
        return [parameters[i] for i in changed_since(self._versions, parameters)]
