"""What every peer trains: the model, the data and the random numbers of `benchmarks.workloads.gpt`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from benchmarks.workloads.corpus import load_corpus
from benchmarks.workloads.gpt import parse_options, wait_for_gate
from benchmarks.workloads.model import GPT, VOCABULARY, Shape
from benchmarks.workloads.sampler import Sampler


class Task:
    """The same initial weights on every rank; data and dropout masks of each rank's own."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # ranks share the cores of one machine
        self.options: argparse.Namespace = parse_options()
        options = self.options
        self.steps: int = options.steps
        self.text = load_corpus(options.data, at_least=options.block + 1)
        torch.manual_seed(options.seed)
        self.model = GPT(Shape(layers=options.layers, heads=options.heads, width=options.width, block=options.block))

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.options.lr)

    def take(self, rank: int) -> Sampler:
        """Become this rank, from the beginning: its data, and the seed of its dropout masks."""
        torch.manual_seed(self.options.seed + 1000 * (rank + 1))
        options = self.options
        return Sampler(self.text, seed=options.seed, rank=rank, batch=options.batch, block=options.block)

    def wait(self, step: int, alive: Callable[[], object] | None = None) -> None:
        wait_for_gate(self.options.gate, step, alive)

    @staticmethod
    def meet(settings: dict[str, Any], member: int) -> None:
        """Wait for all others at the start of the job, where the runtime lets the first ones begin alone.

        A later start finds everybody's mark, and does not wait.
        """
        marks = Path(settings["directory"])
        (marks / f"began-{member}").touch()
        while len(list(marks.glob("began-*"))) < settings["ranks"] + settings["spares"]:
            time.sleep(0.02)

    @staticmethod
    def backward(model: torch.nn.Module, sampler: Sampler) -> float:
        """Forward and backward pass of one step; the loss."""
        inputs, targets = sampler.next()
        loss: Any = F.cross_entropy(model(inputs).view(-1, VOCABULARY), targets.reshape(-1))
        value = float(loss.item())
        loss.backward()
        return value


def join(settings: dict[str, Any]) -> Any:
    """Initialize torch.distributed; the group to train in (None: the default one).

    A short timeout is given to a group of its own: the default one must wait for ranks that are still being started.
    """
    dist.init_process_group("gloo")
    return dist.new_group(timeout=timedelta(seconds=settings["gloo_s"])) if "gloo_s" in settings else None
