"""A pipeline's schedule after a broken step, and in a process that has not executed any."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    pipeline,
)

from phoenix_core.errors import UsageError
from phoenix_core.pipeline import ScheduleState
from phoenix_core.snapshot import Protected

CPU = torch.device("cpu")
MICROBATCHES = 4


class Broken(BaseException):
    """Not an Exception, as what interrupts a step is none."""


@dataclass
class Job:
    """A pipeline of one process, whose schedule has as many stages as it takes."""

    schedule: Any
    breaks_after: int = -1
    passes: int = 0
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(5))

    def __post_init__(self) -> None:
        self.state = ScheduleState(self.schedule)
        for stage in self.state.stages:
            stage.submod.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.passes += 1
        if self.passes == self.breaks_after:
            raise Broken

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for stage in self.state.stages for parameter in stage.submod.parameters()]

    def step(self) -> tuple[list[float], list[torch.Tensor | None]]:
        """Losses and gradients."""
        self.passes, losses = 0, list[torch.Tensor]()
        batch = torch.randn(8, 4, generator=self.generator)
        self.schedule.step(batch, target=batch, losses=losses)
        gradients = [parameter.grad for parameter in self.parameters()]
        for parameter in self.parameters():
            parameter.grad = None
        return [loss.item() for loss in losses], gradients


def build(kind: str) -> Job:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4), torch.nn.Tanh())
    options = {"n_microbatches": MICROBATCHES, "loss_fn": torch.nn.functional.mse_loss}
    if kind == "interleaved":
        stages = [PipelineStage(model[2 * index : 2 * index + 2], index, 2, CPU) for index in range(2)]
        return Job(ScheduleInterleaved1F1B(stages, **options))  # type: ignore[arg-type]
    traced = kind == "traced"
    stage = pipeline(model, (torch.zeros(2, 4),)).build_stage(0, CPU) if traced else PipelineStage(model, 0, 1, CPU)
    return Job((Schedule1F1B if kind == "1f1b" else ScheduleGPipe)(stage, **options))  # type: ignore[arg-type]


@pytest.fixture
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


pytestmark = [
    pytest.mark.usefixtures("_alone"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # torch's own, when it traces
]
kinds = pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved", "traced"])


@kinds
@pytest.mark.parametrize("done", [0, 1])
def test_a_broken_step_leaves_nothing_behind(kind: str, done: int) -> None:
    undisturbed, job = build(kind), build(kind)
    for _ in range(done):
        assert job.step()[0] == undisturbed.step()[0]
    state, drawn = pickle.dumps(job.state.state_dict()), job.generator.get_state()
    job.breaks_after = MICROBATCHES
    with pytest.raises(Broken):
        job.step()
    job.breaks_after = -1
    for parameter in job.parameters():
        parameter.grad = None
    job.generator.set_state(drawn)
    job.state.load_state_dict(pickle.loads(state))
    again, expected = job.step(), undisturbed.step()
    assert again[0] == expected[0] and len(again[0]) == MICROBATCHES
    torch.testing.assert_close(again[1], expected[1], rtol=0, atol=0)
    assert job.passes == undisturbed.passes


@kinds
def test_a_fresh_schedule_begins_as_one_that_has_run(kind: str) -> None:
    undisturbed, fresh = build(kind), build(kind)
    undisturbed.step()
    fresh.generator.set_state(undisturbed.generator.get_state())
    fresh.state.load_state_dict(pickle.loads(pickle.dumps(undisturbed.state.state_dict())))
    begun, expected = fresh.step(), undisturbed.step()
    assert begun[0] == expected[0]
    torch.testing.assert_close(begun[1], expected[1], rtol=0, atol=0)
    assert fresh.passes == MICROBATCHES * len(fresh.state.stages), "it has found out shapes on the side"


def test_a_stage_is_refused_unless_its_schedule_is_protected() -> None:
    job = build("1f1b")
    optimizer = torch.optim.AdamW(job.parameters())
    protected = Protected()
    protected.add({"model": job.schedule._stage.submod, "optimizer": optimizer})
    with pytest.raises(UsageError, match=r"protect\(schedule=\.\.\.\)"):
        protected.check(world_size=2)
    protected.add({"schedule": job.schedule})
    protected.check(world_size=2)
    assert protected.has_own_state(world_size=2)
