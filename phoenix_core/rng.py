"""The random generators that torch, Python and numpy share in a process, and those of its CUDA devices."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def capture_host() -> dict[str, Any]:
    """The state of those that are not a device's."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def restore_host(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


def capture(cuda: Any = torch.cuda) -> dict[str, Any]:
    """The state of all of them. Those of CUDA only in a process that has used it: asking would begin that."""
    state = capture_host()
    if cuda.is_initialized():
        state["cuda"] = {"current": cuda.current_device(), "states": cuda.get_rng_state_all()}
    return state


def restore(state: Mapping[str, Any], cuda: Any = torch.cuda) -> None:
    """Put it back. Whoever takes a rank over may compute on a device of another number than the one before did."""
    if "cuda" in state:
        theirs, states, ours = state["cuda"]["current"], state["cuda"]["states"], cuda.current_device()
        others = set(range(min(len(states), cuda.device_count()))) - {theirs, ours}
        for device in others:
            cuda.set_rng_state(states[device], device)
        cuda.set_rng_state(states[theirs], ours)
    restore_host(state)
