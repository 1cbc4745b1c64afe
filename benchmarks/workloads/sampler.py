"""Random windows of a text; which ones is a function of (seed, rank, position) and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from benchmarks.workloads.corpus import Bytes


class Sampler:
    """Yields batches; its position is its whole state, so that a restored rank goes on with the same data."""

    def __init__(self, text: Bytes, *, seed: int, rank: int, batch: int, block: int) -> None:
        self._text, self._seed, self._rank = text, seed, rank
        self._batch, self._block = batch, block
        self.position = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, both int64 of shape (batch, block); the targets are the inputs one byte later."""
        generator = np.random.default_rng((self._seed, self._rank, self.position))
        starts = generator.integers(0, len(self._text) - self._block, size=self._batch)
        windows = self._text[starts[:, None] + np.arange(self._block + 1)]
        self.position += 1
        samples = torch.from_numpy(windows.astype(np.int64))
        return samples[:, :-1], samples[:, 1:]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.position = state["position"]
