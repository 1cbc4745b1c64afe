"""Every collective through a group of the runtime gives what gloo gives. `python collectives.py RANK STORE`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore

from phoenix_core import communicator

SIZE = 2


def calls(group: dist.ProcessGroup, rank: int) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """By name: run one collective in `group` from data of this rank, and return what it wrote."""
    mine = torch.arange(4, dtype=torch.float32) + 10 * rank
    halves = [mine[:2].clone(), mine[2:].clone()]

    def wrote(run: Callable[..., object], outputs: list[torch.Tensor], *args: object) -> list[torch.Tensor]:
        run(*args, group=group)
        return outputs

    def fresh(count: int = 1, length: int = 4) -> list[torch.Tensor]:
        return [torch.zeros(length) for _ in range(count)]

    def scattered() -> list[torch.Tensor]:
        into = torch.zeros(2)
        dist.scatter(into, halves if rank == 0 else None, src=0, group=group)
        return [into]

    def gathered() -> list[torch.Tensor]:
        into = fresh(SIZE)
        dist.gather(mine, into if rank == 0 else None, dst=0, group=group)
        return into

    def sent() -> list[torch.Tensor]:
        into = torch.zeros(4)
        if rank == 0:
            dist.send(mine, 1, group=group)
            dist.recv(into, None, group=group)
        else:
            dist.recv(into, 0, group=group)
            dist.send(into + 1, 0, group=group)
        return [into]

    def deferred() -> list[torch.Tensor]:
        into = mine.clone()
        work = dist.all_reduce(into, group=group, async_op=True)
        assert work is not None
        (result,) = work.get_future().wait()
        return [into, result]

    def all_reduced() -> list[torch.Tensor]:
        into = mine.clone()
        return wrote(dist.all_reduce, [into], into)

    def broadcast() -> list[torch.Tensor]:
        into = mine.clone()
        return wrote(dist.broadcast, [into], into, 1)

    def reduced() -> list[torch.Tensor]:
        into = mine.clone()
        dist.reduce(into, 0, group=group)
        return [into] if rank == 0 else []

    def into_lists(run: Callable[..., object], length: int, source: object) -> list[torch.Tensor]:
        into = fresh(SIZE, length)
        return wrote(run, into, into, source)

    def into_one(run: Callable[..., object], length: int, source: object) -> list[torch.Tensor]:
        into = torch.zeros(length)
        return wrote(run, [into], into, source)

    return {
        "all_reduce": all_reduced,
        "all_reduce, its future": deferred,
        "broadcast": broadcast,
        "reduce": reduced,
        "all_gather": lambda: into_lists(dist.all_gather, 4, mine),
        "all_gather_into_tensor": lambda: into_one(dist.all_gather_into_tensor, 8, mine),
        "reduce_scatter": lambda: into_one(dist.reduce_scatter, 2, halves),
        "reduce_scatter_tensor": lambda: into_one(dist.reduce_scatter_tensor, 2, mine),
        "all_to_all": lambda: into_lists(dist.all_to_all, 2, halves),
        "all_to_all_single": lambda: into_one(dist.all_to_all_single, 4, mine),
        "gather": gathered,
        "scatter": scattered,
        "barrier": lambda: wrote(dist.barrier, []),
        "send and recv": sent,
    }


def main() -> None:
    rank, path = int(sys.argv[1]), sys.argv[2]
    store = FileStore(path, SIZE)
    hub = communicator.Hub(lambda _: store, "127.0.0.1")
    hub.generation = hub.announced = 1
    communicator.install(hub)
    dist.init_process_group("phoenix", store=PrefixStore("init", store), rank=rank, world_size=SIZE)
    plain = dist.new_group(backend="gloo")
    world = dist.group.WORLD
    assert world is not None
    ours, theirs = calls(world, rank), calls(plain, rank)
    for name, run in ours.items():
        got, expected = run(), theirs[name]()
        assert len(got) == len(expected) and all(map(torch.equal, got, expected)), (name, got, expected)
        print(name, flush=True)
    counts = [counts for name, counts in hub.watermark.counts().items() if ">" not in name]
    assert all(entered == completed for entered, completed in counts), counts
    dist.destroy_process_group()
    hub.close()


if __name__ == "__main__":
    main()
