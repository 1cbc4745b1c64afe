"""When a job is given up: the same rank failing again and again without one new step in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from phoenix_core.protocol import Record

A_SPARE: Final = -1
"""Stands for all spares where failures are counted by rank."""


class Restarts:
    """Failures by rank since the job last came further than ever before."""

    def __init__(self, limit: int, begins_at: int) -> None:
        self.limit = limit
        self.counts: Counter[int] = Counter()
        self.furthest = begins_at

    def failed(self, ranks: Iterable[int]) -> bool:
        """Whether spares have just failed too often. The loss of a rank, which needs one, lets them begin anew."""
        failed = tuple(ranks)
        if any(rank != A_SPARE for rank in failed):
            del self.counts[A_SPARE]
        before = self.spares_fail
        self.counts.update(failed)
        return self.spares_fail and not before

    def resumed(self, boundary: int) -> None:
        """Nobody has executed a step yet, but that far the job has been."""
        self.furthest = max(self.furthest, boundary)

    def reached(self, boundary: int) -> None:
        """Every rank is there. A step that is only executed again forgives nothing."""
        if boundary > self.furthest:
            self.furthest = boundary
            self.counts = Counter({A_SPARE: self.counts[A_SPARE]})

    def spares_work(self) -> None:
        del self.counts[A_SPARE]

    @property
    def spares_fail(self) -> bool:
        """So often in a row that none is started while no rank needs one."""
        return self.counts[A_SPARE] > self.limit

    def reason_to_give_up(self, last: str) -> str:
        """A sentence with `last`, the latest failure; empty where the job may go on."""
        for rank, failures in self.counts.items():
            if rank != A_SPARE and failures > self.limit:
                return f"rank {rank} failed {failures} times without one new step, {self._at_last(last)}"
        return ""

    def no_more_spares(self, last: str) -> Record:
        return Record(kind="spares_given_up", fields={"reason": self.why_no_spare(last)})

    def why_no_spare(self, last: str) -> str:
        return f"a spare failed {self.counts[A_SPARE]} times in a row, {self._at_last(last)}"

    def _at_last(self, last: str) -> str:
        return f"the last time {last}; the limit is --max-restarts {self.limit}"


def reason_before_training(who: str, why: str) -> str:
    """What a worker's end before the first step says: nothing that a restart would change."""
    if why == "exit code 0":
        return (
            f"the script of {who} ended before training began: it must open phoenix.session() and run its loop over "
            "the session's steps()"
        )
    if why.startswith("signal"):
        return f"{who} was ended by {why} before training began; a rank is replaced only from the first step on"
    return f"{who} failed before training began ({why}); its output says why"


def no_worker_for(ranks: Iterable[int], quarantined: Iterable[str]) -> str:
    """Why a job cannot go on that has no spare and no node that may start a worker."""
    names = ", ".join(sorted(quarantined))
    besides = f"; {names}: in quarantine after errors of a GPU, or since it was cut off" if names else ""
    return f"no spare is left for rank {', '.join(map(str, sorted(ranks)))} and no node can start one{besides}"


def left_alone(rank: int, worker: str) -> str:
    """Why a job cannot go on that one rank has left: whoever took its place would leave too."""
    return (
        f"rank {rank} ({worker}) left its loop over steps() while the others train on and wait for it; all ranks must "
        "leave after the same step; where its state is sharded, a rank that dies just then takes the others back"
    )
