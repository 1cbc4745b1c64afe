"""One small job in many layouts: who holds which part of the state differs, the loop does not."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import phoenix_core as phoenix

WIDTH = 64
BATCH = 8
MICROBATCHES = 4


class Block(torch.nn.Module):
    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.drop = torch.nn.Dropout(0.1)
        self.recompute = recompute

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recompute and self.training:
            return x + checkpoint(self.inside, x, use_reentrant=False)  # type: ignore[no-any-return]
        return x + self.inside(x)


class MeanOfRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return mean_of_ranks(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return mean_of_ranks(gradient)


def mean_of_ranks(x: torch.Tensor) -> torch.Tensor:
    total = x.clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()


class Recounting(Block):
    """Computed again in the backward pass, where it counts its batch once more, and reduces amid its random numbers."""

    def __init__(self) -> None:
        super().__init__(recompute=True)
        self.count = torch.nn.BatchNorm1d(WIDTH)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(MeanOfRanks.apply(self.count(super().inside(x))))  # type: ignore[no-any-return, no-untyped-call]


@dataclass
class Job:
    """What a layout protects, and how it executes one step, recording its loss."""

    step: Callable[[phoenix.Step], None]
    protected: dict[str, Any] = field(default_factory=dict)
    after: Callable[[], None] = lambda: None
    """What the loop does outside of the block."""


class Draws:
    """A generator of batches as state to protect."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


def blocks(count: int = 4, **options: Any) -> torch.nn.Sequential:
    return torch.nn.Sequential(*[Block(**options) for _ in range(count)])


def target(batch: torch.Tensor) -> torch.Tensor:
    return batch.roll(1, dims=1)


def error(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (output - wanted).square().mean()


def simple(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, micro: int = 1, clip: bool = False) -> Job:
    """Forward, backward (`micro` times), clip, step."""
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)

    def step(current: phoenix.Step) -> None:
        total = 0.0
        for _ in range(micro):
            batch = torch.randn(BATCH, WIDTH)
            loss = error(model(batch), target(batch)) / micro
            total += loss.item()
            current.record(loss=total)
            loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    return Job(step, {"model": model, "optimizer": optimizer, "scheduler": scheduler})


def adam(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def ddp(_: phoenix.Session) -> Job:
    model = DistributedDataParallel(blocks())
    return simple(model, adam(model), clip=True)


def buffers(_: phoenix.Session) -> Job:
    """BatchNorm: buffers that each forward pass changes, differently on every rank."""
    inner = torch.nn.Sequential(Block(), torch.nn.BatchNorm1d(WIDTH), Block())
    model = DistributedDataParallel(inner, broadcast_buffers=False)
    return simple(model, adam(model))


def accumulation(_: phoenix.Session) -> Job:
    model = DistributedDataParallel(blocks())
    optimizer = adam(model)
    plain = simple(model, optimizer)

    def step(current: phoenix.Step) -> None:
        total = 0.0
        for last in (False, False, True):
            model.require_backward_grad_sync = last
            batch = torch.randn(BATCH, WIDTH)
            loss = error(model(batch), target(batch)) / 3
            total += loss.item()
            current.record(loss=total)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Job(step, plain.protected)


def recompute(_: phoenix.Session) -> Job:
    model = DistributedDataParallel(blocks(recompute=True), static_graph=True)
    return simple(model, adam(model))


def recounting(_: phoenix.Session) -> Job:
    """Small state that changes between the first reduction and the optimizer."""
    model = DistributedDataParallel(
        torch.nn.Sequential(Recounting(), Block(), Recounting()), broadcast_buffers=False, bucket_cap_mb=0.05
    )
    return simple(model, adam(model))


def alternate(_: phoenix.Session) -> Job:
    """Two modules, each trained every other step: DDP moves them to their buckets in different steps."""
    models = [DistributedDataParallel(blocks(2), bucket_cap_mb=0.05) for _ in range(2)]
    jobs = [simple(model, adam(model)) for model in models]
    state = {f"{name}{i}": value for i, job in enumerate(jobs) for name, value in job.protected.items()}
    return Job(lambda current: jobs[current.index % 2].step(current), state)


class NativeScaler:
    """A scaler inside of an object that hands its state on, as image libraries have it."""

    def __init__(self) -> None:
        self.inner = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4)
        self.state_dict, self.load_state_dict = self.inner.state_dict, self.inner.load_state_dict


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    """Hands over to the scheduler inside of it."""

    def __init__(self, optimizer: torch.optim.Optimizer, after: torch.optim.lr_scheduler.LRScheduler) -> None:
        self.after = after
        self.part: Callable[[int], float] = lambda step: step / 5  # which no pickle takes
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        if self.last_epoch < 5:
            return [base * self.part(self.last_epoch) for base in self.base_lrs]
        self.after.step()
        return self.after.get_last_lr()


def habits(_: phoenix.Session) -> Job:
    """What scripts do besides: a fused optimizer under a scaler that overflows, gradients that stay until the next
    step, averages of the weights inside and outside of the block, frozen and thawed parameters, nested schedulers."""
    inner = blocks(2)
    inner.register_buffer("nothing", torch.empty(0))
    model = DistributedDataParallel(inner, find_unused_parameters=True)
    thawed = inner[1].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler, scaler = Warmup(optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)), NativeScaler()
    inside, outside = (torch.optim.swa_utils.AveragedModel(inner).requires_grad_(False) for _ in range(2))

    def step(current: phoenix.Step) -> None:
        if current.index == 4:
            thawed.requires_grad_(True)
        if current.index == 5:
            inner[0].requires_grad_(False)
        optimizer.zero_grad()
        batch = torch.randn(BATCH, WIDTH)
        loss = error(model(batch), target(batch))
        current.record(loss=loss.item(), scale=scaler.inner.get_scale())
        scaler.inner.scale(loss).backward()
        scaler.inner.step(optimizer)
        scaler.inner.update()
        scheduler.step()
        inside.update_parameters(inner)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    return Job(step, {**state, "inside": inside, "outside": outside}, lambda: outside.update_parameters(inner))


def compiled(_: phoenix.Session) -> Job:
    model = DistributedDataParallel(blocks(2))
    job = simple(model, adam(model))
    model.module.compile(backend="aot_eager")
    return job


def outside(_: phoenix.Session) -> Job:
    """Compiled around DDP, collectives included."""
    model = DistributedDataParallel(blocks(2))
    job = simple(model, adam(model))
    model.compile(backend="aot_eager")
    return job


def fsdp(_: phoenix.Session) -> Job:
    model = blocks()
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return simple(model, adam(model), micro=2, clip=True)


def bf16(_: phoenix.Session) -> Job:
    """Computes in bf16; the master weights and the optimizer state are fp32."""
    model = blocks()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return simple(model, adam(model), clip=True)


def hsdp(ft: phoenix.Session) -> Job:
    """Sharded over two ranks, replicated twice."""
    mesh = init_device_mesh("cpu", (2, ft.world_size // 2), mesh_dim_names=("replica", "shard"))
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return simple(model, adam(model), clip=True)


def tensor(ft: phoenix.Session) -> Job:
    """Tensor parallel over two ranks, data parallel (sharded) over the other dimension."""
    mesh = init_device_mesh("cpu", (ft.world_size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = blocks()
    for block in model:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    same = 1000 + mesh["data"].get_local_rank()
    job = simple(model, adam(model))
    torch.manual_seed(same)  # ranks of one tensor-parallel group see the same batch
    return job


def zero(_: phoenix.Session) -> Job:
    """ZeRO-1: every rank has the optimizer state of a part of the parameters."""
    model = DistributedDataParallel(blocks())
    return simple(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


def _pipeline(ft: phoenix.Session, kind: Callable[..., Any], parts: int = 1, *, known: bool = False) -> Job:
    """Two pipeline ranks with `parts` stages each, two data-parallel ranks for each of them.

    `known`: they are told the shapes of what they receive, which torch 2.13 itself fails to find out where all
    backward passes of a DDP stage come after its forward passes. A rank without the last stage records the norm of its
    gradients.
    """
    mesh = init_device_mesh("cpu", (2, ft.world_size // 2), mesh_dim_names=("pipeline", "data"))
    model, count = blocks(), 2 * parts
    chosen = range(mesh["pipeline"].get_local_rank(), count, 2)
    shape = torch.empty(BATCH // MICROBATCHES, WIDTH, requires_grad=True) if known else None
    group, stages = mesh["pipeline"].get_group(), []
    for index in chosen:
        part = model[4 // count * index : 4 // count * (index + 1)]
        wrapped = DistributedDataParallel(part, process_group=mesh["data"].get_group())
        cpu = torch.device("cpu")
        stages.append(PipelineStage(wrapped, index, count, cpu, group=group, input_args=shape, output_args=shape))
    schedule = kind(stages if parts > 1 else stages[0], n_microbatches=MICROBATCHES, loss_fn=error)
    own = torch.nn.ModuleList([stage.submod for stage in stages])
    optimizer = adam(own)
    draw = torch.Generator().manual_seed(1000 + mesh["data"].get_local_rank())  # all stages see the same batch

    def step(current: phoenix.Step) -> None:
        batch = torch.randn(BATCH, WIDTH, generator=draw)
        losses: list[torch.Tensor] = []
        last = {"target": target(batch), "losses": losses} if chosen[-1] == count - 1 else {}
        schedule.step(*([batch] if chosen[0] == 0 else []), **last)
        norm = torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
        current.record(loss=sum(loss.item() for loss in losses) if losses else norm.item())
        optimizer.step()
        optimizer.zero_grad()

    return Job(step, {"model": own, "optimizer": optimizer, "schedule": schedule, "data": Draws(draw)})


def pipeline(ft: phoenix.Session) -> Job:
    return _pipeline(ft, Schedule1F1B)


def gpipe(ft: phoenix.Session) -> Job:
    return _pipeline(ft, ScheduleGPipe, known=True)


def interleaved(ft: phoenix.Session) -> Job:
    """Two stages on each rank."""
    return _pipeline(ft, ScheduleInterleaved1F1B, parts=2, known=True)


LAYOUTS: dict[str, Callable[[phoenix.Session], Job]] = {
    layout.__name__: layout
    for layout in (
        ddp,
        buffers,
        accumulation,
        recompute,
        recounting,
        alternate,
        habits,
        compiled,
        outside,
        fsdp,
        bf16,
        hsdp,
        tensor,
        zero,
        pipeline,
        gpipe,
        interleaved,
    )
}
ALIKE = ("tensor",)
"""Layouts in which several ranks draw the same numbers: they seed themselves."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with phoenix.session() as ft:
        torch.manual_seed(0)
        job = LAYOUTS[options.layout](ft)
        if options.layout not in ALIKE:
            torch.manual_seed(100 + ft.rank)
        ft.protect(**job.protected)
        for step in ft.steps(options.steps):
            with step:
                job.step(step)
            job.after()
        ft.digest()


if __name__ == "__main__":
    main()
