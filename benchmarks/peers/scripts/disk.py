"""torchrun with checkpoints on disk: torch.distributed.checkpoint, synchronous or asynchronous, every few steps.

As the tutorials of torch write it: an application state with `get_state_dict`, `save` or `async_save`, and `load` of
the newest one that is complete. What only one rank has (its random numbers, its place in the data) is saved by it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.scripts.probe import Probe
from benchmarks.peers.scripts.task import Task, join
from benchmarks.workloads.sampler import Sampler

KEPT = 2


class Application(Stateful):
    """Model, optimizer and what this rank alone has, as torch.distributed.checkpoint wants to see them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sampler: Sampler, rank: int) -> None:
        self.model, self.optimizer, self.sampler, self.rank = model, optimizer, sampler, rank

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        own = {"random": torch.get_rng_state(), "position": torch.tensor(self.sampler.position)}
        return {"model": model, "optimizer": optimizer, f"rank{self.rank}": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        own = state[f"rank{self.rank}"]
        torch.set_rng_state(own["random"])
        self.sampler.position = int(own["position"])


class Checkpoints:
    """One directory per step; it is complete when torch has written its metadata, which it does last."""

    def __init__(self, directory: Path, application: Application, *, asynchronous: bool) -> None:
        self._directory, self._application, self._asynchronous = directory, application, asynchronous
        # A group of its own: the thread that saves must not meet the training's collectives.
        self._group: Any = dist.new_group(backend="gloo") if asynchronous else None
        self._future: Any = None

    def load(self) -> int:
        """Restore the newest complete one; the step to go on with."""
        complete = [int(path.parent.name) for path in self._directory.glob("*/.metadata")]
        newest = torch.tensor(max(complete, default=0))
        dist.broadcast(newest, src=0)  # one may be complete for this rank by now that was not for another
        if step := int(newest):
            load({"application": self._application}, checkpoint_id=self._directory / str(step))
        dist.barrier()  # nobody may delete what another still reads
        return step

    def save(self, step: int) -> None:
        """The state with which `step` begins."""
        if self._future is not None:
            self._future.result()
        place = self._directory / str(step)
        if self._asynchronous:
            self._future = async_save(
                {"application": self._application}, checkpoint_id=place, process_group=self._group
            )
        else:
            save({"application": self._application}, checkpoint_id=place)
        if self._application.rank == 0:
            self._prune()

    def _prune(self) -> None:
        complete = sorted(self._directory.glob("*/.metadata"), key=lambda path: int(path.parent.name))
        for path in complete[:-KEPT]:
            shutil.rmtree(path.parent, ignore_errors=True)


def main(probe: Probe) -> None:
    settings = probe.settings
    task = Task()
    group = join(settings)
    rank = dist.get_rank()
    probe.say("communicator_ready", rank=rank)
    sampler = task.take(rank)
    model = DistributedDataParallel(task.model, process_group=group)
    optimizer = task.optimizer(model)
    probe.say("model_built", rank=rank)
    application = Application(model, optimizer, sampler, rank)
    checkpoints = Checkpoints(Path(settings["directory"]), application, asynchronous=settings["asynchronous"])
    step = checkpoints.load()
    probe.say("state_restored", rank=rank)
    while step < task.steps:
        task.wait(step)
        began = probe.begin(step, rank)
        loss = task.backward(model, sampler)
        optimizer.step()
        optimizer.zero_grad()
        probe.commit(step, rank, began, loss=loss)
        step += 1
        if step % settings["every"] == 0:
            checkpoints.save(step)
    dist.destroy_process_group()
