"""A job of layouts.py in which memory rots: one bit is flipped in what another rank has of rank 1's state at one step,
and in that step rank 1 dies. Under FSDP2 that is the holder's copy, under HSDP the twin's own snapshot."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import layouts  # type: ignore[import-not-found]  # beside this file, as Python runs it
import torch

from phoenix_core.kept import KeptStates

ROT_AT = 12


def rot(states: KeptStates, owner: int, boundary: int) -> None:
    payload, checksum = states._kept[owner][boundary]
    flipped = bytearray(payload)
    flipped[len(flipped) // 2] ^= 1
    states._kept[owner][boundary] = (bytes(flipped), checksum)


put = KeptStates.put


def put_and_rot(states: KeptStates, owner: int, boundary: int, *rest: Any) -> str:
    checksum = put(states, owner, boundary, *rest)
    if owner == (3 if "hsdp" in sys.argv else 1) and boundary == ROT_AT and os.environ["RANK"] != "1":
        rot(states, owner, boundary)
    return checksum


def optimizer_that_dies(model: torch.nn.Module) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = iter(range(10**9))

    def die(*_: object) -> None:
        if next(steps) == ROT_AT and os.environ.get("PHOENIX_WORKER") == "w1":
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer.register_step_post_hook(die)
    return optimizer


if __name__ == "__main__":
    KeptStates.put = put_and_rot  # type: ignore[method-assign,assignment]
    layouts.adam = optimizer_that_dies
    layouts.main()
