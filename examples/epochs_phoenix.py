"""Epochs over a shuffled dataset on CPU, one process per rank; README.md beside this file says how to start it."""

import argparse
import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import phoenix_core as phoenix

CLASSES = 3


def spirals(samples: int, seed: int) -> TensorDataset:
    """Points of intertwined spirals, and which spiral each belongs to."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    radius = torch.rand(samples, generator=generator)
    angle = 4 * radius + 2 * math.pi * labels / CLASSES + 0.1 * torch.randn(samples, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels)


def evaluate(model: nn.Module, dataset: TensorDataset) -> tuple[float, float]:
    """Mean loss and accuracy. `model` is the one inside of DDP, which would call collectives for its buffers."""
    loss = correct = 0.0
    model.eval()
    with torch.no_grad():
        for inputs, labels in DataLoader(dataset, batch_size=256):
            outputs = model(inputs)
            loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(dim=1) == labels).sum().item()
    model.train()
    return loss / len(dataset), correct / len(dataset)


def save(path: Path, **state: object) -> None:
    """A file that is complete or absent, whenever the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.rename(path)


class Training:
    """The model and what changes with it."""

    def __init__(self, options: argparse.Namespace, steps: int, rank: int) -> None:
        self.options = options
        torch.manual_seed(0)  # every rank starts from the same weights
        net = nn.Sequential(
            *(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU()),
            *(nn.Linear(64, 64), nn.Dropout(0.1), nn.ReLU()),
            nn.Linear(64, CLASSES),
        )
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = CosineAnnealingLR(self.optimizer, steps)
        torch.manual_seed(rank + 1)  # and drops out units of its own

    def load(self, path: Path) -> int:
        """Take up the state of a checkpoint; returns the epoch that follows."""
        state = torch.load(path)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        return int(state["epoch"]) + 1

    def step(self, batches: Iterator[Any]) -> float:
        """One optimizer step, of the gradients of several batches. Returns its loss on this rank."""
        total = 0.0
        for left in reversed(range(self.options.accumulate)):
            inputs, labels = next(batches)
            with self.model.no_sync() if left else nullcontext():  # gradients are reduced with the last batch
                loss = nn.functional.cross_entropy(self.model(inputs), labels) / self.options.accumulate
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return total

    def end_epoch(self, epoch: int, validation: TensorDataset) -> None:
        """Called by rank 0 alone: no collectives in here."""
        loss, accuracy = evaluate(self.model.module, validation)
        print(f"epoch {epoch} validation loss {loss:.4f} accuracy {accuracy:.3f}", flush=True)
        if self.options.checkpoints is not None:
            save(
                self.options.checkpoints / f"epoch-{epoch}.pt",
                model=self.model.module.state_dict(),
                optimizer=self.optimizer.state_dict(),
                scheduler=self.scheduler.state_dict(),
                epoch=epoch,
            )


def train(options: argparse.Namespace, ft: phoenix.Session) -> None:
    training, validation = spirals(options.samples, seed=0), spirals(1024, seed=1)
    sampler: DistributedSampler[Any] = DistributedSampler(training, num_replicas=ft.world_size, rank=ft.rank)
    loader = DataLoader(training, batch_size=16, sampler=sampler, drop_last=True, generator=torch.Generator())
    per_epoch, rest = divmod(len(loader), options.accumulate)
    if rest or not per_epoch:
        raise SystemExit(f"an epoch of {len(loader)} batches is no multiple of --accumulate {options.accumulate}")
    run = Training(options, options.epochs * per_epoch, ft.rank)
    first = run.load(options.resume) if options.resume else 0
    batches = phoenix.Batches(loader)  # sets the sampler's epoch
    batches.load_state_dict({"epoch": first, "position": 0})
    ft.protect(model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, data=batches)
    for step in ft.steps((options.epochs - first) * per_epoch):
        # Before the step, not after it: should rank 0 die here, its replacement comes by here as well.
        if ft.rank == 0 and step.index and step.index % per_epoch == 0:
            run.end_epoch(first + step.index // per_epoch - 1, validation)
        with step:
            step.record(loss=run.step(batches))
    if ft.rank == 0:
        run.end_epoch(options.epochs - 1, validation)
    ft.digest()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8192, help="of the training set, for all ranks together")
    parser.add_argument("--accumulate", type=int, default=2, help="batches of 16 per optimizer step")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="save epoch-N.pt here after each epoch")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from this checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    options = arguments()
    with phoenix.session() as ft:
        train(options, ft)
