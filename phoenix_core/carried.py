"""The states of schedulers and scalers, put back into the objects that are there, and into those that these hold.

torch's base class of schedulers saves all of its attributes but the optimizer. One of them may be another scheduler (a
warm-up that hands over to a decay), which would come back as a copy with an optimizer of its own; or it may be a
function, which cannot be saved and need not be.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType, MethodType
from typing import Any, Final
from weakref import WeakSet

import torch

Scheduler = torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau


@dataclass(frozen=True)
class _Inside:
    """The state of a scheduler that another one has as an attribute."""

    state: Mapping[str, Any]


def state_of(value: Any) -> Mapping[str, Any]:
    """What `load_into` puts back; its own `state_dict()` for all but schedulers."""
    state: Mapping[str, Any] = value.state_dict()
    if not isinstance(value, Scheduler):
        return state
    stays = FunctionType | MethodType | torch.optim.Optimizer
    return {
        key: _Inside(state_of(entry)) if isinstance(entry, Scheduler) else entry
        for key, entry in state.items()
        if not isinstance(entry, stays)
    }


def load_into(value: Any, state: Mapping[str, Any]) -> None:
    for key, entry in state.items():
        if isinstance(entry, _Inside):
            load_into(getattr(value, key), entry.state)
    value.load_state_dict({key: entry for key, entry in state.items() if not isinstance(entry, _Inside)})


SCALERS: Final[WeakSet[torch.amp.GradScaler]] = WeakSet()
"""Every GradScaler of this process, once they are watched: scripts put them into objects of their own."""


@cache
def watch_scalers() -> None:
    """Called before a process waits for a rank: to look at all objects there are takes a tenth of a second, which a
    replacement does not have. Of those made later the class tells, of copies too."""

    def made(cls: type[torch.amp.GradScaler], *_: object, **__: object) -> torch.amp.GradScaler:
        scaler = object.__new__(cls)
        SCALERS.add(scaler)
        return scaler

    torch.amp.GradScaler.__new__ = made  # type: ignore[method-assign, assignment]
    SCALERS.update(value for value in gc.get_objects() if issubclass(type(value), torch.amp.GradScaler))


def forget_half_a_step(scaler: torch.amp.GradScaler) -> None:
    """A broken step may have unscaled gradients, which a scaler refuses to do twice before its update."""
    scaler._per_optimizer_states.clear()


def forget_scale(optimizer: torch.optim.Optimizer) -> None:
    """A scaler gives a fused optimizer its scale for one step; a broken step did not come to take it back."""
    for name in ("grad_scale", "found_inf"):
        optimizer.__dict__.pop(name, None)
