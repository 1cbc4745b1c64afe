"""Modes of torch that a script switches on for a part of a step (autocast, no_grad): an interruption leaves none on.

A signal that throws the training thread out of `__enter__` or `__exit__` leaves what these switch half switched, for
good and without a word. So none does. CPython 3.11 looks for signals where a function begins or a generator goes on,
after a call, and where a loop jumps back. Between the return of `__enter__` and the body that `__exit__` guards, and
between the body and the first instruction of `__exit__`, it does not: who is outside of the two functions is outside of
the switching too. (Compiled ones have no frame, and need none: no signal is handled in them.)

What this cannot see, such as `set_grad_enabled` between its making and its block, is put back as it was when the step
began, as far as torch says what is on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import CodeType
from typing import Final

import torch

_SWITCHES: Final = frozenset(("__enter__", "__exit__"))
"""Functions of any context manager; those made of a generator run in `contextlib`'s."""
_OTHERS: Final = frozenset(
    (
        ExitStack.enter_context.__code__,  # between `__enter__` and the note that `__exit__` is owed
        torch.set_grad_enabled.__init__.__code__,  # these switch when they are made
        torch.autograd.set_detect_anomaly.__init__.__code__,
        torch.autograd.grad_mode.set_multithreading_enabled.__init__.__code__,
    )
)
_DEVICES: Final = ("cpu", "cuda")


def is_switching(stack: Iterable[CodeType], step: CodeType | None) -> bool:
    """Whether a mode may be half switched in a thread that runs `stack`, the innermost first.

    `step` is the code that has the block `with step:`. What called that has no part in it.
    """
    for code in stack:
        if code.co_name in _SWITCHES or code in _OTHERS:
            return True
        if code is step:
            break
    return False


@dataclass(frozen=True)
class Modes:
    """Those of the calling thread that change what a model computes."""

    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    """By kind of device: whether it is on, and the type to cast to."""
    cache: bool
    nesting: int
    """How many autocasts are open: the last one to end throws the casts away that were kept."""

    @staticmethod
    def now() -> Modes:
        autocast = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES)
        return Modes(torch.is_grad_enabled(), autocast, torch.is_autocast_cache_enabled(), _nesting())

    def put_back(self) -> None:
        """Casts that were kept are thrown away: they belong to the graph of a step that broke."""
        torch.set_grad_enabled(self.grad)
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        for _ in range(self.nesting, _nesting()):
            torch.autocast_decrement_nesting()
        for _ in range(_nesting(), self.nesting):
            torch.autocast_increment_nesting()
        torch.clear_autocast_cache()


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
