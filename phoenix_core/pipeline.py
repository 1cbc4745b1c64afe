"""Pipelines (torch.distributed.pipelining) after a broken step: the one place that knows their private parts.

A stage learns the shapes of what it receives in its first step, by messages between the stages and a pass on the side.
A spare must not repeat that: nobody would answer. Nor may all repeat it together: that pass leaves DDP expecting a
backward pass, so that it reduces the first microbatch apart and the sums are formed in another order. So what was
learned belongs to the state that a step begins with.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from phoenix_core.errors import UsageError


def is_schedule(value: object) -> bool:
    """Whether `value` executes stages; a job that uses none does not pay for the import."""
    module: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    return module is not None and isinstance(value, module._PipelineSchedule)


def _stages_alive() -> list[Any]:
    """The stages of this process, whoever holds them."""
    module: Any = sys.modules.get("torch.distributed.pipelining.stage")
    if module is None:
        return []
    gc.collect()  # a stage that the script has dropped does not count
    # By type: to ask any object for its __class__ may run code of its own.
    return [value for value in gc.get_objects() if module._PipelineStageBase in type(value).__mro__]


class ScheduleState:
    """What the next step of a schedule begins with, as an object with a state."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule
        several = hasattr(schedule, "_stages")
        self.stages: list[Any] = schedule._stages if several else [schedule._stage]
        self._initialised = tuple(
            f"_{'stages' if several else 'stage'}_{direction}_initialized" for direction in ("forward", "backward")
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "initialised": [getattr(self._schedule, name) for name in self._initialised],
            "stages": [
                (stage.has_backward, getattr(stage, "_inference_mode", None), stage._stage_meta)
                for stage in self.stages
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back, and drop what a broken step has left."""
        schedule = self._schedule
        schedule._internal_losses.clear()
        for name in ("fwd_recv_ops", "bwd_recv_ops", "backward_counter", "unshard_ops", "unsharded_stages"):
            getattr(schedule, name, {}).clear()
        for name, value in zip(self._initialised, state["initialised"], strict=True):
            setattr(schedule, name, value)
        forward, backward = state["initialised"]
        for stage, (trains, mode, shapes) in zip(self.stages, state["stages"], strict=True):
            for left in (stage.fwd_cache, stage.bwd_cache, stage.backward_state, stage.dw_runner, stage.output_chunks):
                left.clear()
            stage.has_backward, stage._inference_mode, stage._stage_meta = trains, mode, shapes
            if forward:
                _make_room(stage, schedule._n_microbatches, backward)


def _make_room(stage: Any, microbatches: int, backward: bool) -> None:
    """New buffers for what is received: a message of the broken step may still be written into the old ones."""
    if hasattr(stage, "_setup_forward_recv_info"):
        stage._setup_forward_recv_info(microbatches, backward)
        stage._setup_forward_send_info()
    else:  # cut out of a traced model: it knows all shapes
        stage._prepare_forward_infra(microbatches, stage._stage_meta.inputs)
    stage.grad_send_info = None
    if backward:
        stage._setup_backward_recv_info(microbatches)


def check(schedules: list[ScheduleState]) -> None:
    """Raises UsageError where a stage belongs to no protected schedule."""
    known = {id(stage) for schedule in schedules for stage in schedule.stages}
    if any(id(stage) not in known for stage in _stages_alive()):
        raise UsageError(
            "steps(): there is a stage of a pipeline whose schedule is not protected; call protect(schedule=...)"
        )
