"""A small DDP job whose every random choice matters: dropout, data, and buckets of several sizes.

Faults that must strike at an instant no observer could hit are planted by flags; each strikes once per job,
which a file in the run directory remembers.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import phoenix_core as phoenix


class Positions:
    """A data position with a state of its own, different on every rank."""

    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(1000 + rank)

    def draw(self, width: int) -> torch.Tensor:
        return torch.randn(16, width, generator=self.generator)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


def once(name: str) -> bool:
    """True for the first caller in this job."""
    try:
        (Path(os.environ.get("PHOENIX_RUN_DIR", ".")) / f"planted-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fall_behind(rank: int) -> None:
    """Until the recovery interrupts it a rank stays before its optimizer; rank 2 dies once rank 0 has gone on."""
    run_dir = Path(os.environ["PHOENIX_RUN_DIR"])
    while rank != 2 or not (run_dir / "planted-ahead").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


class Switching:
    """A context manager in whose own code the survivors are when rank 2 dies, and until they have heard of it."""

    inside = 0

    def __init__(self, ft: phoenix.Session) -> None:
        self.ft = ft

    def __enter__(self) -> None:
        Switching.inside += 1
        run_dir, others = Path(os.environ["PHOENIX_RUN_DIR"]), {0, 1, 3} - {self.ft.rank}
        once(f"switching-{self.ft.rank}")
        while not all((run_dir / f"planted-switching-{rank}").exists() for rank in others):
            time.sleep(0.001)
        if self.ft.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        until = float("inf")
        while time.monotonic() < until:
            time.sleep(0.001)
            if self.ft.must_recover():
                until = min(until, time.monotonic() + 0.1)  # the first signals come here, the later ones in the block

    def __exit__(self, *_: object) -> None:
        Switching.inside -= 1


def die_while_giving(protected: Any) -> None:
    """This process ends when a twin has had a part of its live state."""
    describe = protected.describe

    def first(parts: Iterator[memoryview]) -> Iterator[memoryview]:
        yield next(parts)
        os.kill(os.getpid(), signal.SIGKILL)

    def describe_half(*args: Any) -> tuple[bytes, Iterator[memoryview]]:
        description, parts = describe(*args)
        return description, first(parts)

    protected.describe = describe_half


def device_error(code: int) -> RuntimeError:
    """As torch 2.13 raises it."""
    said = {700: "an illegal memory access was encountered", 214: "uncorrectable ECC error encountered"}[code]
    error = torch.AcceleratorError(
        f"CUDA error: {said}\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    )
    error.error_code = code  # type: ignore[attr-defined]  # torch sets it, and its stub does not say so
    return error


def agreed(here: bool) -> bool:
    """Whether any rank says yes; all get the same answer."""
    votes = torch.tensor([float(here)])
    torch.distributed.all_reduce(votes)
    return bool(votes.item())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument(
        "--step-apart", action="store_true", help="rank 1 is kept before its optimizer, then rank 2 dies"
    )
    parser.add_argument(
        "--alone-ahead", action="store_true", help="rank 0 alone comes to step 11, rank 2 dies, then 0 as it gives"
    )
    parser.add_argument(
        "--switch-at", type=int, default=-1, help="rank 2 dies while the others enter a context manager"
    )
    parser.add_argument("--raise-at", type=int, default=-1, help="rank 1 raises ValueError at this step, every time")
    parser.add_argument("--device-error-at", type=int, default=-1, help="rank 1 meets an error of its GPU, once")
    parser.add_argument("--code", type=int, default=700, help="CUDA's code of that error")
    parser.add_argument("--hang-at", type=int, default=-1, help="rank 1 sleeps at this step, once")
    parser.add_argument("--freeze-at", type=int, default=-1, help="rank 1 sleeps with the GIL at this step, once")
    parser.add_argument("--skip-at", type=int, default=-1, help="this step draws a batch and trains on nothing")
    parser.add_argument("--pause-at", type=int, default=-1, help="rank 0 sleeps for 4 s before this step")
    parser.add_argument("--leave-at", type=int, default=-1, help="rank 1 alone leaves the loop before this step")
    parser.add_argument("--slow", action="store_true", help="a step takes 0.3 s, and 0.8 s on rank 1")
    parser.add_argument("--groups", action="store_true", help="two more groups, of ranks 0 and 3 and of 1 and 2")
    parser.add_argument("--no-loop", action="store_true", help="leave the session without a step")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--between", action="store_true", help="scheduler and random numbers outside of the step")
    parser.add_argument("--stop-file", type=Path, help="all ranks leave the loop together once this file exists")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with phoenix.session() as ft:
        torch.manual_seed(0)
        layers = [
            (torch.nn.Linear(options.width, options.width), torch.nn.ReLU(), torch.nn.Dropout(0.1)) for _ in range(8)
        ]
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(options.width), *[part for layer in layers for part in layer])
        groups = [torch.distributed.new_group(ranks) for ranks in ([0, 3], [1, 2]) if options.groups]
        model = DistributedDataParallel(net, static_graph=options.static_graph)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
        positions = Positions(ft.rank)
        torch.manual_seed(100 + ft.rank)
        ft.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=positions)
        if options.no_loop:
            return
        for step in ft.steps(options.steps):
            leave = False
            if step.index == options.leave_at and ft.rank == 1:
                break
            if step.index == options.pause_at and ft.rank == 0:
                time.sleep(4)  # longer than any rank may keep the others waiting in a step
            early = positions.draw(options.width) if options.between else None
            with step:
                stop_now = options.stop_file is not None and step.index % 50 == 0 and agreed(options.stop_file.exists())
                if options.slow:
                    time.sleep(0.8 if ft.rank == 1 else 0.3)
                batch = positions.draw(options.width) if early is None else early
                if step.index == options.skip_at:
                    step.record(loss=0.0)
                    continue
                if options.alone_ahead and step.index == 11 and ft.rank == 0 and once("ahead"):
                    die_while_giving(ft.rank_state.protected)  # before the forward pass, in which it waits for others
                with Switching(ft) if step.index == options.switch_at and once(f"switch-{ft.rank}") else nullcontext():
                    loss = (model(batch) - batch).square().mean()
                step.record(loss=loss.item(), inside=Switching.inside)
                if options.step_apart and step.index == 11 and ft.rank == 2 and once("die"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if step.index == options.raise_at and ft.rank == 1:
                    raise ValueError("a deliberate mistake of the script")
                if step.index == options.device_error_at and ft.rank == 1 and once("device"):
                    raise device_error(options.code)
                if step.index == options.hang_at and ft.rank == 1 and once("hang"):
                    time.sleep(600)
                if step.index == options.freeze_at and ft.rank == 1 and once("freeze"):
                    ctypes.PyDLL(None).sleep(600)
                loss.backward()
                if options.step_apart and step.index == 10 and ft.rank == 1 and once("wait"):
                    time.sleep(600)  # until the recovery interrupts it: the others go on to step 11 meanwhile
                if options.alone_ahead and step.index == 10 and ft.rank != 0 and once(f"behind-{ft.rank}"):
                    fall_behind(ft.rank)
                optimizer.step()
                if not options.between:
                    scheduler.step()
                optimizer.zero_grad()
                leave = stop_now  # only once the step is whole
            if options.between:
                scheduler.step()
                torch.rand(3)
            if leave:
                break
        ft.digest()
        del groups


if __name__ == "__main__":
    main()
