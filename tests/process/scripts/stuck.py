"""The pipeline of layouts.py in which worker w0, of the first stage, falls asleep between two microbatches."""

from __future__ import annotations

import itertools
import os
import time

import layouts  # type: ignore[import-not-found]  # beside this file, as Python runs it
import torch

SLEEPS_AT = 101
"""Forward pass of a block: two find out shapes, and each step has two blocks and four microbatches."""

passes = itertools.count()


class Sleepy(layouts.Block):  # type: ignore[misc]
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        if next(passes) == SLEEPS_AT and os.environ.get("PHOENIX_WORKER") == "w0":
            time.sleep(600)
        return super().inside(x)  # type: ignore[no-any-return]


if __name__ == "__main__":
    layouts.Block = Sleepy
    layouts.main()
