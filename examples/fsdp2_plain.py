"""A small transformer sharded over all ranks with `fully_shard`, on CPU; README.md says how to start it."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SYMBOLS, LENGTH, WIDTH = 64, 32, 64


class Net(nn.Module):
    """Says for every place of a sequence which symbol stood there before the sequence was turned round."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        hidden = self.symbols(sequences) + self.places(torch.arange(LENGTH))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.flatten(0, 1))  # type: ignore[no-any-return]


def shard(model: Net, world_size: int) -> Net:
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> float:
    sequences = torch.randint(SYMBOLS, (16, LENGTH))
    loss = nn.functional.cross_entropy(model(sequences), sequences.flip(1).flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # a collective: it comes before optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    return loss.item()


def train(options: argparse.Namespace, rank: int, world_size: int) -> None:
    torch.manual_seed(0)  # every rank cuts its shards from the same weights
    model = shard(Net(options.blocks), world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=options.steps // 10)
    torch.manual_seed(rank + 1)  # and draws samples of its own
    for step in range(options.steps):
        train_step(model, optimizer, rank, step)
        scheduler.step()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--blocks", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    options = arguments()
    dist.init_process_group("gloo")
    train(options, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
