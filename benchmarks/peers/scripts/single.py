"""Checkpoints as the examples of nvidia-resiliency-ext write them: rank 0 saves everything into one file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.workloads.sampler import Sampler


def save(
    path: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    atomic: Callable[[], AbstractContextManager[object]],
) -> None:
    """The state with which `step` begins. The random numbers of every rank belong to it."""
    own = torch.get_rng_state()
    all_random = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(all_random, own)
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": all_random, "step": step}
        with atomic():
            unfinished = path.with_suffix(".new")
            torch.save(state, unfinished)
            unfinished.replace(path)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sampler: Sampler, rank: int) -> int:
    """Restore the checkpoint, if there is one; the step to go on with."""
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"][rank])
    step = int(state["step"])
    sampler.position = step
    return step
