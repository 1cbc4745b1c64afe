"""The baseline that restarts: plain torch.distributed, with a checkpoint on disk every some steps to begin anew from.

What PHOENIX is compared with: `torchrun --max-restarts`, which ends all ranks when one fails and starts them again. The
checkpoints are torch.distributed.checkpoint's, written while the training waits or beside it (async). The process says
of itself what a harness cannot see from outside; it knows nothing of PHOENIX's runtime.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks.workloads.plain import PlainSession, PlainStep, joined
from chaos.procfs import start_ticks
from phoenix_core.events import EventWriter

CHECKPOINTS: Final = "PHOENIX_PLAIN_CHECKPOINTS"
"""`every:sync:directory` or `every:async:directory`."""
TIMEOUT_S: Final = "PHOENIX_PLAIN_TIMEOUT_S"
"""Of the process group (else gloo's own of half an hour): nothing else finds a rank that is silent."""
NODE: Final = "PHOENIX_NODE"
"""Where several launchers work together, each on a node of its own: its name."""
KEPT: Final = 2
COMPLETE: Final = ".metadata"
"""The file that torch.distributed.checkpoint writes last, and moves to its place when it is whole."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Where checkpoints go, every how many steps, and whether training waits for them."""

    every: int
    asynchronous: bool
    directory: Path

    @staticmethod
    def from_environment() -> Checkpoints:
        every, mode, directory = os.environ[CHECKPOINTS].split(":", 2)
        return Checkpoints(every=int(every), asynchronous=mode == "async", directory=Path(directory))

    def at(self, boundary: int) -> Path:
        return self.directory / f"step-{boundary}"

    def complete(self) -> list[int]:
        """Boundaries of the checkpoints that are whole, oldest first."""
        found = self.directory.glob(f"step-*/{COMPLETE}")
        return sorted(int(path.parent.name.removeprefix("step-")) for path in found)


class RestartSession(PlainSession):
    """A session that begins at the newest checkpoint, and writes one every some steps."""

    def __init__(self, rank: int, world_size: int, events: EventWriter, checkpoints: Checkpoints) -> None:
        super().__init__(rank, world_size, events)
        self._checkpoints = checkpoints
        self._group = dist.new_group(backend="gloo") if checkpoints.asynchronous else None
        self._writing: Future[Any] | None = None
        self._parts: tuple[Any, Any, Any] | None = None
        self._index: int | None = None

    def protect(self, *, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Any) -> None:
        super().protect(model=model, optimizer=optimizer, data=data)
        self._parts = (model, optimizer, data)
        model.register_forward_hook(lambda _module, _inputs, output: self._watch(output))
        optimizer.register_step_pre_hook(lambda *_: self._entered("optimizer"))
        self.events.emit("model_built")

    def steps(self, count: int) -> Iterator[PlainStep]:
        begins_at = self._restore()
        for index in range(begins_at, count):
            self._index = index
            self._entered("forward")
            yield PlainStep(self, index)
            if (index + 1) % self._checkpoints.every == 0:
                self._save(index + 1)
        self._finish_writing()

    def _watch(self, output: torch.Tensor) -> None:
        """The backward pass has begun when it comes to what the model has made."""
        if output.requires_grad:
            output.register_hook(lambda _: self._entered("backward"))

    def _entered(self, phase: str) -> None:
        if self._index is not None:  # torch makes an optimizer step of its own before it can load one's state
            self.events.emit("phase_entered", step=self._index, phase=phase)

    def _state(self) -> dict[str, Any]:
        """All that a rank needs to go on; what ranks have for themselves carries their number."""
        assert self._parts is not None
        model, optimizer, data = self._parts
        weights, moments = get_state_dict(model, optimizer)
        own = {"random": torch.get_rng_state(), "data": torch.tensor(data.state_dict()["position"])}
        return {"model": weights, "optimizer": moments, f"rank{self.rank}": own}

    def _restore(self) -> int:
        started, found = time.monotonic(), self._checkpoints.complete()
        # All ranks must take the same one: what is whole now for one may not have been for another.
        newest = torch.tensor(found[-1] if found else 0)
        dist.broadcast(newest, src=0)
        boundary = int(newest)
        if boundary:
            assert self._parts is not None
            model, optimizer, data = self._parts
            state = self._state()
            load(state, checkpoint_id=self._checkpoints.at(boundary))
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            own = state[f"rank{self.rank}"]
            torch.set_rng_state(own["random"])
            data.load_state_dict({"position": int(own["data"])})
        seconds = time.monotonic() - started
        self.events.emit("state_restored", boundary=boundary, source="disk", bytes=0, seconds=seconds)
        return boundary

    def _save(self, boundary: int) -> None:
        started = time.monotonic_ns()
        path = self._checkpoints.at(boundary)
        try:
            self._finish_writing()
            if self._checkpoints.asynchronous:
                self._writing = async_save(self._state(), checkpoint_id=path, process_group=self._group)  # type: ignore[assignment]
            else:
                save(self._state(), checkpoint_id=path)
        except (Exception, CheckpointException) as error:  # of an earlier one, where it is asynchronous
            self._written(boundary, started, f"{type(error).__name__}: {error}")
            raise
        self._written(boundary, started)
        if self.rank == 0:
            for old in self._checkpoints.complete()[:-KEPT]:
                shutil.rmtree(self._checkpoints.at(old), ignore_errors=True)

    def _written(self, boundary: int, started: int, error: str = "") -> None:
        stall_ns = time.monotonic_ns() - started
        self.events.emit(
            "checkpoint_written", step=boundary, bytes=0, stall_ns=stall_ns, duration_ns=stall_ns, error=error
        )

    def _finish_writing(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None


@contextmanager
def restart_session() -> Iterator[RestartSession]:
    """As `plain_session`. The environment names the checkpoints, and the directory for events."""
    checkpoints = Checkpoints.from_environment()
    rank, round_, pid = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.getpid()
    # The pid, since each of several launchers counts its own rounds: two workers of a rank may have the same.
    worker, node = f"w{rank}.{pid}", os.environ.get(NODE, "n0")
    path = Path(os.environ["PHOENIX_RUN_DIR"]) / "events" / f"{worker}.jsonl"
    events = EventWriter(path, worker=worker, node=node, rank=rank, generation=round_)
    events.emit("worker_spawned", pid=pid, start_ticks=start_ticks(pid))
    try:
        with joined():
            if TIMEOUT_S in os.environ:
                dist.barrier()  # ranks that are still being started must not meet a short timeout
                limit = timedelta(seconds=float(os.environ[TIMEOUT_S]))
                dist.distributed_c10d._set_pg_timeout(limit)
            events.emit("communicator_ready", groups=1)
            yield RestartSession(rank, dist.get_world_size(), events, checkpoints)
    finally:
        events.close()
