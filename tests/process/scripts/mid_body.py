"""Two ranks and a transfer in which the sender dies in the middle of its bytes: gloo leaves the receiver waiting.

`python mid_body.py RANK STORE HOW`: rank 0 kills rank 1 once its first bytes have come, and says how its wait ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore

from phoenix_core import communicator
from phoenix_core.errors import GenerationSuperseded
from phoenix_core.hooks import insist

NUMBERS = 100_000_000


def kill_in_mid_body(pid: int, numbers: torch.Tensor) -> None:
    """End the sender when the first of these numbers, and not the last, has come."""
    while not numbers[0]:
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    assert not numbers[-1], "all of it had come already"


def main() -> None:
    rank, path, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    store = FileStore(path, 2)
    hub = communicator.Hub(lambda _: store, "127.0.0.1")
    hub.generation = hub.announced = 1
    communicator.install(hub)
    dist.init_process_group("phoenix", store=PrefixStore("init", store), rank=rank, world_size=2)
    numbers = torch.full((NUMBERS,), float(rank))
    if rank == 1:
        store.set("pid", str(os.getpid()))
    dist.barrier()
    if rank == 0:
        threading.Thread(target=kill_in_mid_body, args=(int(store.get("pid")), numbers), daemon=True).start()
        threading.Timer(1.0, lambda: insist(lambda: hub.generation > 1, lambda: hub.announce(2))).start()
    started = time.monotonic()
    if how == "message":
        work = dist.isend(numbers, 0) if rank == 1 else dist.irecv(numbers, 1)
    else:
        work = dist.broadcast(numbers, 1, async_op=True)
    assert work is not None
    if how == "future":  # as DDP waits
        work.get_future().wait()
        print("future ended", hub.let_go, flush=True)
    try:
        work.wait()
        print("ended", flush=True)
    except GenerationSuperseded:
        print("superseded", hub.let_go, time.monotonic() - started >= 1.0, flush=True)
    dist.destroy_process_group()
    hub.close()


if __name__ == "__main__":
    main()
