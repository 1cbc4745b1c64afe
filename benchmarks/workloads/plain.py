"""The baseline: the interface of a training session over plain torch.distributed, without any protection.

The same training loop runs on it under `torchrun`, so that a benchmark compares two runtimes and not
two scripts. It heals nothing: a broken collective ends the process.
"""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from phoenix_core.events import EventWriter


class PlainStep:
    """One step of the loop; writes the same event as a protected step, with its own duration."""

    def __init__(self, session: PlainSession, index: int) -> None:
        self.index = index
        self._session = session
        self._recorded: dict[str, Any] = {}
        self._started = 0

    def __enter__(self) -> PlainStep:
        self._started = time.monotonic_ns()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            duration = time.monotonic_ns() - self._started
            self._session.events.emit("step_committed", step=self.index, duration_ns=duration, **self._recorded)

    def record(self, **values: float) -> None:
        self._recorded.update(values)


class PlainSession:
    def __init__(self, rank: int, world_size: int, events: EventWriter) -> None:
        self.rank, self.world_size, self.events = rank, world_size, events
        self._tensors: dict[str, torch.Tensor] = {}

    def protect(self, *, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: object) -> None:
        """Nothing is protected; the model is remembered for the digest."""
        self._tensors = model.state_dict()  # tensors only: the wrapper must be free to go at the end of training

    def steps(self, count: int) -> Iterator[PlainStep]:
        for index in range(count):
            yield PlainStep(self, index)

    def digest(self) -> str:
        total = hashlib.sha256()
        for name, tensor in self._tensors.items():
            total.update(name.encode())
            tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            total.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
        self.events.emit("state_digest", digest=total.hexdigest())
        return total.hexdigest()


@contextmanager
def plain_session() -> Iterator[PlainSession]:
    """gloo over the environment that torchrun sets; one rank where there is none."""
    with joined():
        rank = dist.get_rank()
        directory = os.environ.get("PHOENIX_RUN_DIR")
        path = Path(directory) / "events" / f"plain-rank{rank}.jsonl" if directory else None
        events = EventWriter(path, worker=f"plain{rank}", rank=rank, generation=0)
        try:
            yield PlainSession(rank, dist.get_world_size(), events)
        finally:
            events.close()


@contextmanager
def joined() -> Iterator[None]:
    """Inside, this process is a rank of the default group."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        # The model is in a reference cycle and holds the group. Freed only at interpreter exit, gloo's threads
        # abort about every third process (torch 2.13), so the cycle is broken while the interpreter is alive.
        gc.collect()
        dist.destroy_process_group()
