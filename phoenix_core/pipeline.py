"""Pipelines (torch.distributed.pipelining) after a broken step: the one place that knows their private parts.

A stage learns the shapes of what it receives in its first step, by messages between the stages and a forward pass on
the side. A spare must not repeat that: nobody would answer, and that pass leaves DDP expecting a backward pass, so that
it reduces the first microbatch apart and the sums are formed in another order. So what was learned belongs to the
state that a step begins with.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any


def is_schedule(value: object) -> bool:
    """Whether `value` executes stages; a job that uses none does not pay for the import."""
    module: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    return module is not None and isinstance(value, module._PipelineSchedule)


def stages_alive() -> bool:
    """Whether this process has a stage, whoever holds it."""
    module: Any = sys.modules.get("torch.distributed.pipelining.stage")
    return module is not None and any(isinstance(found, module._PipelineStageBase) for found in gc.get_objects())


class ScheduleState:
    """What the next step of a schedule with one stage on each rank begins with."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def state_dict(self) -> dict[str, Any]:
        schedule, stage = self._schedule, self._schedule._stage
        return {
            "forward": schedule._stage_forward_initialized,
            "backward": schedule._stage_backward_initialized,
            "training": stage.has_backward,
            "mode": stage._inference_mode,
            "shapes": stage._stage_meta,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back, and drop what a broken step has left."""
        schedule, stage = self._schedule, self._schedule._stage
        schedule._internal_losses.clear()
        for left in (stage.fwd_cache, stage.bwd_cache, stage.backward_state, stage.dw_runner, stage.output_chunks):
            left.clear()
        schedule._stage_forward_initialized = state["forward"]
        schedule._stage_backward_initialized = state["backward"]
        stage.has_backward = state["training"]
        stage._inference_mode, stage._stage_meta = state["mode"], state["shapes"]
        stage.grad_send_info = None
        # New room for what is received: a message of the broken step may still be written into the old.
        if state["forward"]:
            stage._setup_forward_recv_info(schedule._n_microbatches, state["training"])
            stage._setup_forward_send_info()
        if state["backward"]:
            stage._setup_backward_recv_info(schedule._n_microbatches)
