"""nvidia-resiliency-ext, restart in process, as its optimal_example.py writes it, with reserve ranks.

Model, optimizer and store are made once; the process group, DDP and the loop are what is restarted. The wrapper finds
its own argument of `train` by the annotation, which must not be a text: no `annotations` from the future here.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import nvidia_resiliency_ext.inprocess as inprocess
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.scripts.probe import Probe
from benchmarks.peers.scripts.single import load, save
from benchmarks.peers.scripts.task import Task


class Told(inprocess.abort.AbortTorchDistributed):
    """The default, and a word of it: this is where a rank first acts on a failure."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def __call__(self, state: Any) -> Any:
        self._probe.say("failure_detected", cause="restart")
        return super().__call__(state)


class Stopped(inprocess.finalize.Finalize):
    """The wrapped function has been left."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def __call__(self, state: Any) -> Any:
        self._probe.say("worker_quiesced")
        return state


def train(
    probe: Probe,
    store: TCPStore,
    task: Task,
    optimizer: torch.optim.Optimizer,
    call: inprocess.CallWrapper | None = None,
) -> None:
    assert call is not None
    settings = probe.settings
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        store=PrefixStore(str(call.iteration), store),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=settings["gloo_s"]),
    )
    probe.say("communicator_ready", rank=rank, generation=call.iteration)
    sampler = task.take(rank)
    model = DistributedDataParallel(task.model)
    probe.say("model_built", rank=rank)
    path = Path(settings["directory"]) / "checkpoint.pt"
    optimizer.zero_grad()  # an interrupted step may have left some
    step = load(path, task.model, optimizer, sampler, rank)
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
            save(path, step, task.model, optimizer, call.atomic)
    dist.destroy_process_group()


def main(probe: Probe) -> None:
    settings = probe.settings
    task = Task()
    optimizer = task.optimizer(task.model)
    port = int(os.environ["MASTER_PORT"])
    store = TCPStore(
        host_name=os.environ["MASTER_ADDR"],
        port=port + 1,
        world_size=int(os.environ["WORLD_SIZE"]),
        is_master=os.environ["RANK"] == "0",
        multi_tenant=True,
        wait_for_workers=True,
        use_libuv=True,
    )
    wrapper = inprocess.Wrapper(
        store_kwargs={"port": port + 2},
        abort=Told(probe),
        finalize=Stopped(probe),
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(settings["ranks"]),
            inprocess.rank_assignment.ShiftRanks(),
        ),
        **{name: timedelta(seconds=value) for name, value in settings.get("wrapper", {}).items()},
    )
    wrapper(train)(probe, store, task, optimizer)
