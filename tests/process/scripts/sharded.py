"""A small FSDP2 job: every rank holds a shard of each parameter that no other rank has."""

from __future__ import annotations

import argparse

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import phoenix_core as phoenix


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + self.drop(self.down(hidden))  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with phoenix.session() as ft:
        mesh = init_device_mesh("cpu", (ft.world_size,))
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[Block(options.width) for _ in range(options.blocks)])
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
        torch.manual_seed(100 + ft.rank)
        ft.protect(model=model, optimizer=optimizer, scheduler=scheduler)
        for step in ft.steps(options.steps):
            with step:
                batch = torch.randn(16, options.width)
                loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
                step.record(loss=loss.item())
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        ft.digest()


if __name__ == "__main__":
    main()
