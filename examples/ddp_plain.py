"""Data-parallel training on CPU, one process per rank; README.md beside this file says how to start it."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    inputs = torch.randn(64, 32)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True).sin())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def train(rank: int) -> None:
    torch.manual_seed(0)  # every rank starts from the same weights
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank + 1)  # and draws samples of its own
    for step in range(2000):
        train_step(model, optimizer, rank, step)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank())
    gc.collect()  # a DDP model that is freed at interpreter exit can abort the process (torch 2.13 on gloo)
    dist.destroy_process_group()
