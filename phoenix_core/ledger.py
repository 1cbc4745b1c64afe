"""What a coordinator must have written down before it acts, so that the one after it never says the same twice.

Numbers once given out, and who was decided to sit where, are known to nobody for certain but the coordinator that
decided: an agent that it told may be lost together with it. All else, above all which workers live and what they have
done meanwhile, the next one learns from the agents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """`seats[r]` is (worker, node) of rank r in `generation`; empty: the job has not begun.

    `vacant` are the ranks whose worker there was taken for failed and has not been replaced. `resumed`: the newest
    generation that was to resume; 0 before training began. `spawned` workers have been named. `failures` are counted by
    rank (see restarts.py), up to boundary `furthest`. `on_disk` is the boundary of the latest complete checkpoint.
    `device_errors` are counted by node (see quarantine.py). `ended`: (outcome, reason) of the job.
    """

    generation: int = 0
    resumed: int = 0
    spawned: int = 0
    seats: tuple[tuple[str, str], ...] = ()
    vacant: tuple[int, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    device_errors: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[int, int] = field(default_factory=dict)
    furthest: int = 0
    on_disk: int = 0
    ended: tuple[str, str] | None = None

    def to_json(self) -> dict[str, object]:
        return {**self.__dict__, "failures": [list(pair) for pair in self.failures.items()]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Ledger:
        tuples = {
            "seats": tuple((worker, node) for worker, node in data["seats"]),
            "vacant": tuple(data["vacant"]),
            "lost_nodes": tuple(data["lost_nodes"]),
            "quarantined": tuple(data["quarantined"]),
            "failures": {int(rank): int(count) for rank, count in data["failures"]},
            "ended": tuple(data["ended"]) if data["ended"] else None,
        }
        return Ledger(**{**data, **tuples})


class Book:
    """The ledger in two files in memory, which outlive the coordinator: the launcher holds them open.

    Each holds one page, a line that begins with its number, and they are written in turn. A page that was cut short
    belongs to a coordinator that died before it acted on it: the other one holds.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = tuple(fds)
        self._number = 0
        self._written: Ledger | None = None

    @staticmethod
    def create() -> tuple[int, int]:
        """Two empty files without a name: their descriptors, for the coordinators to be given."""
        return os.memfd_create("phoenix-ledger", 0), os.memfd_create("phoenix-ledger", 0)

    def read(self) -> Ledger:
        """What was written last."""
        pages = [os.pread(fd, os.fstat(fd).st_size, 0).partition(b" ") for fd in self._fds]
        whole = [(int(number), text) for number, _, text in pages if text.endswith(b"\n")]
        if not whole:
            return Ledger()
        self._number, text = max(whole)
        return Ledger.from_json(json.loads(text))

    def write(self, ledger: Ledger) -> None:
        """Returns once it is safe from the end of this process."""
        if ledger == self._written:
            return
        self._number += 1
        fd = self._fds[self._number % len(self._fds)]
        page = f"{self._number} {json.dumps(ledger.to_json(), separators=(',', ':'))}\n".encode()
        os.ftruncate(fd, 0)
        done = 0
        while done < len(page):
            done += os.pwrite(fd, page[done:], done)
        self._written = ledger
