"""nvidia-resiliency-ext, restart in the job (ft_launcher), as its example of the heartbeats API writes it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.scripts.probe import Probe
from benchmarks.peers.scripts.single import load, save
from benchmarks.peers.scripts.task import Task, join

LEARNED = 11
"""Steps after which the timeouts are computed: the first checkpoint has been seen by then, as the example advises."""


def main(probe: Probe) -> None:
    settings = probe.settings
    task = Task()
    group = join(settings)
    rank = dist.get_rank()
    probe.say("communicator_ready", rank=rank)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    sampler = task.take(rank)
    model = DistributedDataParallel(task.model, process_group=group)
    optimizer = task.optimizer(task.model)
    probe.say("model_built", rank=rank)
    path = Path(settings["directory"]) / "checkpoint.pt"
    step = begun = load(path, task.model, optimizer, sampler, rank)
    dist.barrier()
    probe.say("state_restored", rank=rank)
    while step < task.steps:
        task.wait(step, alive=client.send_heartbeat)  # else a job that stands at the gate would be restarted
        began = probe.begin(step, rank)
        loss = task.backward(model, sampler)
        client.send_heartbeat()
        optimizer.step()
        optimizer.zero_grad()
        probe.commit(step, rank, began, loss=loss)
        step += 1
        if step % settings["every"] == 0:
            save(path, step, task.model, optimizer, contextlib.nullcontext)
        if settings["learn"] and step == begun + LEARNED:
            client.calculate_and_set_hb_timeouts()
    client.shutdown_workload_monitoring()
    dist.destroy_process_group()
