"""torchft: one replica group of one rank, as its train_ddp.py writes it.

Manager, `DistributedDataParallel`, `OptimizerWrapper`; model and optimizer heal from a peer. The data of a step is that
of its number, so that a group that comes back takes the samples that it would have had.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.manager import WorldSizeMode

from benchmarks.peers.scripts.probe import Probe
from benchmarks.peers.scripts.task import Task


class Quorums(logging.Handler):
    """torchft's own log of quorums: a record for each new one, just before its communicator is made."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(logging.INFO)
        self._probe = probe

    def emit(self, record: logging.LogRecord) -> None:
        self._probe.say("communicator_ready", generation=record.__dict__.get("quorum_id"))


def manager_of(settings: dict[str, Any], load: Any, save: Any, group: int) -> Manager:
    spares = settings["spares"] > 0
    return Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=settings["gloo_s"])),
        # Spares compute whole steps whose gradients do not count; without them any number of groups may go on.
        min_replica_size=settings["ranks"] if spares else 1,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if spares else WorldSizeMode.DYNAMIC,
        load_state_dict=load,
        state_dict=save,
        replica_id=f"group_{group}",
        timeout=timedelta(seconds=settings["manager_s"]),
        init_sync=False,  # the initial weights are the same everywhere, for which this is what it advises
    )


def main(probe: Probe) -> None:
    settings = probe.settings
    group = int(os.environ["REPLICA_GROUP_ID"])
    task = Task()
    quorums = logging.getLogger("torchft_quorums")
    quorums.setLevel(logging.INFO)
    quorums.addHandler(Quorums(probe))
    sampler = task.take(group)

    def load(state: dict[str, Any]) -> None:
        task.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        probe.say("state_restored", rank=group)

    def save() -> dict[str, Any]:
        return {"model": task.model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = manager_of(settings, load, save, group)
    model = DistributedDataParallel(manager, task.model)
    optimizer = Optimizer(manager, task.optimizer(model))
    probe.say("model_built", rank=group)
    task.meet(settings, group)
    joined = False  # the number of its first step is known to a group that comes back only when that is over
    while (step := manager.current_step()) < task.steps:
        task.wait(step)
        began = probe.begin(step, group if joined else None)
        sampler.position = step
        optimizer.zero_grad()  # asks for a quorum
        loss = task.backward(model, sampler)
        optimizer.step()  # if everybody could
        committed = manager.current_step() - 1
        if committed < step:
            probe.say("failure_detected", rank=group, cause="error", detail=str(manager.errored())[:200])
            probe.say("worker_quiesced", rank=group)
        else:
            joined = True
            # With spares the place is what the quorum gave it; a group that healed in this step had none yet.
            place = manager.participating_rank() if settings["spares"] else group
            probe.commit(committed, place if manager.is_participating() else None, began, loss=loss)
    manager.shutdown()
