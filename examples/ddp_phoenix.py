"""Data-parallel training on CPU, one process per rank; README.md beside this file says how to start it."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import phoenix_core as phoenix


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    inputs = torch.randn(64, 32)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True).sin())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def train(rank: int, ft: phoenix.Session) -> None:
    torch.manual_seed(0)  # every rank starts from the same weights
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank + 1)  # and draws samples of its own
    ft.protect(model=model, optimizer=optimizer)
    for step in ft.steps(2000):
        with step:
            train_step(model, optimizer, rank, step.index)


if __name__ == "__main__":
    with phoenix.session() as ft:
        train(ft.rank, ft)
