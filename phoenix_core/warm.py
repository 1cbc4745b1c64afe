"""What the first step of a process costs besides the step: paid by a spare before it is needed."""

from __future__ import annotations

import random

import torch
from torch._C._distributed_c10d import FakeProcessGroup
from torch.nn.parallel import DistributedDataParallel

IMPORTED_FOR_THEIR_COST = (FakeProcessGroup, DistributedDataParallel)


def warm_up() -> None:
    """Run forward, backward, and AdamW once on a tiny model; leave the random generators as they were.

    The first AdamW of a process imports for about a second, the first autograd pass starts its
    thread, the first DistributedDataParallel imports for a tenth.
    """
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    model = torch.nn.Sequential(torch.nn.Embedding(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    scores = model(torch.tensor([[0, 1, 2]]))
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.tensor([0, 1, 2])).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.set_rng_state(torch_state)
    random.setstate(python_state)
