"""What a coordinator must have written down before it acts, so that the one after it never says the same twice.

Numbers once given out, and who was decided to sit where, are known to nobody for certain but the coordinator that
decided: an agent that it told may be lost together with it. All else, above all which workers live and what they have
done meanwhile, the next one learns from the agents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
    """The ledger's pages in a file that outlives the coordinator: the launcher holds it open, in memory.

    One line a change. A line that was cut short belongs to a coordinator that died before it acted on it: the line
    before it holds.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._written: Ledger | None = None

    @staticmethod
    def create() -> int:
        """An empty file without a name: its descriptor, for the coordinators to be given."""
        return os.memfd_create("phoenix-ledger", 0)

    def read(self) -> Ledger:
        """What was written last; a line that was cut short is dropped."""
        pages = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        os.ftruncate(self._fd, pages.rfind(b"\n") + 1)
        lines = pages.split(b"\n")[:-1]
        return Ledger.from_json(json.loads(lines[-1])) if lines else Ledger()

    def write(self, ledger: Ledger) -> None:
        """Returns once it is safe from the end of this process."""
        if ledger == self._written:
            return
        self._written = ledger
        line = json.dumps(ledger.to_json(), separators=(",", ":")).encode() + b"\n"
        end = os.fstat(self._fd).st_size
        while line:
            done = os.pwrite(self._fd, line, end)
            line, end = line[done:], end + done
