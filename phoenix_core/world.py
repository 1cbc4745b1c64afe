"""The membership of a job as an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phoenix_core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class World:
    """Which worker holds which rank in one generation.

    `ranks[r]` is the worker of rank r; `spares` are warm workers without a rank.
    Raises UsageError where one worker would hold two places.
    """

    generation: int
    ranks: tuple[str, ...]
    spares: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        everyone = self.ranks + self.spares
        if len(set(everyone)) != len(everyone):
            raise UsageError(f"a worker holds two places in generation {self.generation}: {everyone}")
        if self.generation < 0:
            raise UsageError(f"a generation is never negative: {self.generation}")

    @property
    def size(self) -> int:
        return len(self.ranks)

    def rank_of(self, worker: str) -> int | None:
        """The worker's rank, or None for a spare or a stranger."""
        return self.ranks.index(worker) if worker in self.ranks else None

    def to_json(self) -> dict[str, object]:
        return {"generation": self.generation, "ranks": list(self.ranks), "spares": list(self.spares)}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> World:
        ranks, spares = data["ranks"], data["spares"]
        assert isinstance(ranks, list) and isinstance(spares, list)
        return World(generation=int(str(data["generation"])), ranks=tuple(ranks), spares=tuple(spares))
