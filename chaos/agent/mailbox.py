"""Where orders lie. One directory per process, one order per number; whoever renames a file first has it.

    <box>/<n>.order       written by the trial
    <box>/<n>.taken       the process has taken it, and nobody can take it back
    <box>/<n>.withdrawn   the trial has taken it back, and it will never happen
    <box>/<n>.answer      {"at": ns, "proof": {...}}, or {"refused": reason}
    <box>/<n>.ended       {...}: what was seen at the end of something that lasts
    <box>/<n>.release     one byte that both have mapped: 1 ends what lasts, also where no Python code runs any more

The box is named by pid and start time, so an order can never reach another process that has got the same pid.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DIRECTORY: Final = "PHOENIX_AGENT_DIR"
"""The variable that tells a process where boxes are; without it there is no agent."""
SHIELD: Final = "PHOENIX_AGENT_SHIELD"
"""The variable with packages (comma-separated) whose code no fault may strike in: they are the runtime's, not the
training's, and an exception out of nowhere could find them with a lock in their hands."""
SNAPSHOTS: Final = "PHOENIX_AGENT_SNAPSHOTS"
"""The variable by which a runtime's adapter names the class (module:class) whose objects keep snapshots in memory.
They have `boundaries()`, by owner, and `get(owner, boundary)`, the bytes themselves."""

Json = Mapping[str, object]


def box_of(directory: Path, pid: int, start_ticks: int) -> Path:
    """The box of exactly this process."""
    return directory / f"{pid}-{start_ticks}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a process is told to do. `ttl_s` bounds what lasts; `within_s` how long it may wait for its instant."""

    act: str
    params: Json
    ttl_s: float | None = None
    within_s: float = 30.0

    def to_json(self) -> dict[str, object]:
        return {"act": self.act, "params": dict(self.params), "ttl_s": self.ttl_s, "within_s": self.within_s}

    @staticmethod
    def from_json(data: Json) -> Order:
        ttl_s = data["ttl_s"]
        return Order(
            act=str(data["act"]),
            params=data["params"] if isinstance(data["params"], Mapping) else {},
            ttl_s=None if ttl_s is None else float(str(ttl_s)),
            within_s=float(str(data["within_s"])),
        )


class Slot:
    """One order in a box, for either side."""

    def __init__(self, box: Path, number: str) -> None:
        self._base = box / number

    def path(self, state: str) -> Path:
        return self._base.with_name(f"{self._base.name}.{state}")

    def take(self, state: str) -> bool:
        """Rename the order; false where the other side was quicker."""
        try:
            self.path("order").rename(self.path(state))
        except FileNotFoundError:
            return False
        return True

    def read(self, state: str) -> Json | None:
        try:
            data: Json = json.loads(self.path(state).read_bytes())
        except FileNotFoundError:
            return None
        return data

    def write(self, state: str, data: Json) -> None:
        """A reader sees the whole document or none."""
        unfinished = self.path(f"{state}~")
        unfinished.write_bytes(json.dumps(dict(data)).encode())
        unfinished.rename(self.path(state))

    def page(self) -> mmap.mmap:
        """The byte that ends what lasts."""
        descriptor = os.open(self.path("release"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, 1)
            return mmap.mmap(descriptor, 1)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        with self.page() as page:
            page[0] = 1


_numbers = itertools.count(1)


def send(box: Path, order: Order) -> Slot | None:
    """Put an order into a box; None where there is no box: no agent runs in that process."""
    if not box.is_dir():
        return None
    slot = Slot(box, f"{os.getpid()}-{next(_numbers)}")
    slot.page().close()  # it must be there before the order is
    slot.write("order", order.to_json())
    return slot
