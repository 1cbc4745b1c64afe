"""What a script does to its protected state at a wrong time, as far as it shows while the script trains."""

from __future__ import annotations

import pickle

import torch

from phoenix_core.advice import COPIES, EARLY_CHANGE, say_once
from phoenix_core.errors import UsageError
from phoenix_core.snapshot import Protected


class Misuse:
    """Looks at what a script has protected: before the loop, at the beginning of a step, and before its end."""

    def __init__(self, protected: Protected) -> None:
        self._protected = protected
        self._versions = 0
        self._start = b""

    def at_loop(self, world_size: int) -> None:
        """Name what makes every rank of a DDP job send its whole state, and need not."""
        if copies := self._protected.needless_copies(world_size):
            say_once(COPIES.format(", ".join(f"protect({name}=...)" for name in copies)))

    def at_step(self, start: bytes) -> None:
        """A step begins; `start` is what Protected.capture_start said of it."""
        self._versions, self._start = self._changes(), start

    def at_optimizer(self, *, whole: bool) -> None:
        """The first optimizer of the step is about to run; `whole`: a step that breaks is begun from a snapshot."""
        if not whole and self._changes() != self._versions:
            say_once(EARLY_CHANGE)

    def at_end(self, step: int) -> None:
        """The step ended, and none of its optimizers ran. Raises UsageError where gradients wait for another step."""
        left = any(p.grad is not None and bool(p.grad.any()) for p in self._protected.parameters())
        if left and not self._overflowed():
            raise UsageError(
                f"step {step} left gradients but called no protected optimizer: accumulate inside one "
                "`with step`, and hand every optimizer to protect()"
            )

    def _changes(self) -> int:
        """Grows with each change of a parameter in place: torch counts them, for autograd."""
        return sum(0 if p.is_inference() else p._version for p in self._protected.parameters())

    def _overflowed(self) -> bool:
        """Whether a GradScaler has kept its optimizer from this step: it has lowered its scale since."""
        before = pickle.loads(self._start)["carried"]
        scalers = {n: v for n, v in self._protected.objects.items() if isinstance(v, torch.amp.GradScaler)}
        return any(value.is_enabled() and value.get_scale() < before[name]["scale"] for name, value in scalers.items())
