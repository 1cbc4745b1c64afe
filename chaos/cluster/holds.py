"""What the hand can hold, and the partitions among it: cut and healed, with what packets showed of that."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from chaos.cluster.cut import Cut
from chaos.cluster.layout import Network
from chaos.cluster.probe import Prober, Way
from chaos.cluster.shapes import Block

TABLE: Final = "phoenix"
NANOSECONDS: Final = 1_000_000_000


class Refused(Exception):
    """The fault could not be applied as asked, and nothing of it is left; the message says why."""


class Hold(Protocol):
    """A fault of the network, from its beginning to its end."""

    @property
    def blocks(self) -> frozenset[Way]:
        """On which ways it lets nothing pass, so that probes for other faults do not count on them."""

    @property
    def disturbs(self) -> frozenset[Way]:
        """On which ways nobody else can measure how quick the network is."""

    @property
    def on(self) -> bool: ...

    def begin(self, others: Collection[Hold]) -> Mapping[str, object]:
        """{"at", "proof"}: when it was applied and what packets showed, beside what is held already. Raises Refused."""

    def end(self, others: Collection[Hold]) -> Mapping[str, object]:
        """{"healed", "proof"}: the same of its end."""

    def cut(self) -> None:
        """On (again), without a proof: for flapping."""

    def heal(self) -> None:
        """Off, without a proof."""


class Partition:
    """Between the blocked pairs no packet passes while it is on; what passes is tried at every change that counts."""

    def __init__(self, network: Network, prober: Prober, blocks: Iterable[Block], *, name: str) -> None:
        self.blocks = self.disturbs = frozenset(blocks)
        self._parties = {party.name: party for party in network.parties}
        self._prober = prober
        self._name = f"{TABLE}-{os.getpid()}-{name}"
        self._cuts: list[Cut] = []

    @property
    def on(self) -> bool:
        return bool(self._cuts)

    def begin(self, others: Collection[Hold]) -> Mapping[str, object]:
        """Cut, and prove it: before, every way passed; now exactly the blocked ones do not. Raises Refused."""
        open_ways = self._prober.ways - _blocked(others)
        if dead := open_ways - self._prober.passing(open_ways, open_ways):
            raise Refused(f"the network did not work before: {_in_words(dead)}")
        at = time.monotonic_ns()
        self.cut()
        took_ns = time.monotonic_ns() - at
        passing = self._prober.passing(open_ways, open_ways - self.blocks)
        wrong = sorted(passing & self.blocks), sorted(open_ways - self.blocks - passing)
        if any(wrong):
            self.heal()
            raise Refused(f"passed, though cut: {_in_words(wrong[0])}; cut, though open: {_in_words(wrong[1])}")
        seen = {"tried": len(open_ways), "passed_before": len(open_ways), "passed": len(passing)}
        return {"at": at, "proof": {**seen, "cut": len(self.blocks), "took_s": took_ns / NANOSECONDS}}

    def end(self, others: Collection[Hold]) -> Mapping[str, object]:
        """Heal, and see whether it is: every way passes again that nobody else blocks."""
        at = time.monotonic_ns()
        self.heal()
        freed = self.blocks - _blocked(others)
        passing = self._prober.passing(freed, freed)
        after_s = (time.monotonic_ns() - at) / NANOSECONDS
        return {"healed": passing == freed, "proof": {"tried": len(freed), "passed": len(passing), "after_s": after_s}}

    def cut(self) -> None:
        """Raises Refused where the kernel does not drop packets."""
        if self._cuts:
            return
        try:
            for receiver in sorted({receiver for _, _, receiver in self.blocks}):
                sources = [self._parties[a].address[plane] for plane, a, b in sorted(self.blocks) if b == receiver]
                self._cuts.append(Cut(self._name, self._parties[receiver].namespace, sources))
        except OSError as error:
            self.heal()
            raise Refused(str(error.strerror)) from error

    def heal(self) -> None:
        while self._cuts:
            self._cuts.pop().close()


def _blocked(holds: Iterable[Hold]) -> frozenset[Way]:
    return frozenset(way for held in holds for way in held.blocks)


def _in_words(ways: Iterable[Way]) -> str:
    listed = [f"{sender} to {receiver} ({plane.value})" for plane, sender, receiver in sorted(ways)]
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return f"{', '.join(listed[:4])}{more}" if listed else "none"
