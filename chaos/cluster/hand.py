"""The process that holds network faults on a cluster of isolated nodes, for the trial that started it.

    trial --orders (stdin)--> hand --inside--> the namespaces of the nodes
          <--answers (stdout)--

It waits until the cluster is there. Orders and answers are JSON lines:

    {"apply": id, "blocks": [[plane, from, to]], "ttl_s": 30, "period_s": 2, "count": 5}
        -> {"applied": id, "at": ns, "proof": {...}} | {"refused": id, "reason"}
    {"revert": id}  -> {"reverted": id, "healed": bool, "proof": {...}}
    {"verify": id, "blocks": [...]}  -> the same, of a fault that a hand held which was killed
    and unasked, when a fault ends by itself: {"over": id, "reason", "healed", "proof"}

When its input ends (the trial closed it, or was killed) it heals everything and goes. Should it be killed itself, the
kernel heals: its rules are tied to its sockets (`cut.py`).
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from chaos.cluster import namespaces
from chaos.cluster.holds import NANOSECONDS, Partition, Refused
from chaos.cluster.layout import COORDINATOR, Network, Plane
from chaos.cluster.probe import Prober, Way
from chaos.procfs import start_ticks

LOOK_S: Final = 0.02


@dataclass
class Held:
    """`flips` are the times (monotonic ns) at which a flapping partition changes, next one first."""

    partition: Partition
    until: int
    flips: list[int]

    @property
    def next(self) -> int:
        return min([self.until, *self.flips[:1]])


class Hand:
    def __init__(self, network: Network) -> None:
        self._network = network
        self._prober = Prober(network)
        self._held: dict[str, Held] = {}

    def serve(self) -> None:
        """Until the orders end; then nothing is held any more."""
        rest = b""
        while True:
            due = min((held.next for held in self._held.values()), default=None)
            timeout = None if due is None else max(0.0, (due - time.monotonic_ns()) / NANOSECONDS)
            if select.select([0], [], [], timeout)[0]:
                block = os.read(0, 65536)
                if not block:
                    break
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            self._tick(time.monotonic_ns())
        for held in self._held.values():
            held.partition.heal()
        self._prober.close()

    def _obey(self, order: Mapping[str, Any]) -> None:
        if "revert" in order:
            name = str(order["revert"])
            held = self._held.pop(name, None)
            if held is not None:
                _tell(reverted=name, **held.partition.end(self._blocked()))
            else:
                _tell(reverted=name, healed=True, proof={})  # it was over, and has said so
            return
        name = str(order.get("apply") or order["verify"])
        blocks = [(Plane(plane), sender, receiver) for plane, sender, receiver in order["blocks"]]
        partition = Partition(self._network, self._prober, blocks, name=name)
        if "verify" in order:
            _tell(reverted=name, **partition.end(self._blocked()))
            return
        try:
            begun = partition.begin(self._blocked())
        except Refused as error:
            _tell(refused=name, reason=str(error))
            return
        flips = flip_times(int(str(begun["at"])), order.get("period_s"), order.get("count"))
        until = int(str(begun["at"])) + round(order["ttl_s"] * NANOSECONDS)
        self._held[name] = Held(partition, until, flips)
        _tell(applied=name, **begun)

    def _tick(self, now: int) -> None:
        for name, held in list(self._held.items()):
            while held.flips and now >= held.flips[0]:
                held.flips.pop(0)
                if held.flips or not held.partition.on:
                    (held.partition.heal if held.partition.on else held.partition.cut)()
                else:
                    self._finish(name, "it has flapped as often as asked")
            if name in self._held and now >= held.until:
                self._finish(name, "its time to live is over")

    def _finish(self, name: str, reason: str) -> None:
        held = self._held.pop(name)
        _tell(over=name, reason=reason, **held.partition.end(self._blocked()))

    def _blocked(self) -> frozenset[Way]:
        held = [held.partition.blocks for held in self._held.values()]
        return frozenset(way for blocks in held for way in blocks)


def flip_times(start: int, period_s: float | None, count: int | None) -> list[int]:
    """When a flapping partition that was cut at `start` heals and is cut again, in turn; the last time it heals."""
    if period_s is None:
        return []
    half = round(period_s * NANOSECONDS / 2)
    return [start + half * number for number in range(1, 2 * (count or 1))]


def _enter(file: Path) -> Network | None:
    """The cluster, once it is there, with descriptors of our own; None where the orders ended first."""
    while (network := Network.read(file)) is None:
        if select.select([0], [], [], LOOK_S)[0]:
            return None
    namespaces.become_root_of(network.pid)
    opened = [
        replace(party, namespace=os.open(f"/proc/{network.pid}/fd/{party.namespace}", os.O_RDONLY | os.O_CLOEXEC))
        for party in network.parties
    ]
    if start_ticks(network.pid) != network.start_ticks:
        raise ProcessLookupError(errno.ESRCH, "the job has ended")
    namespaces.move_to(next(party.namespace for party in opened if party.name == COORDINATOR))
    return replace(network, parties=tuple(opened))


def _tell(**answer: object) -> None:
    try:
        os.write(1, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        return  # the trial is dead: the end of our input says what to do


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the file that describes the cluster."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C: the trial decides what it means
    try:
        network = _enter(Path(arguments[0]))
    except OSError as error:
        _tell(failed=f"the nodes cannot be entered: {error.strerror}")
        return
    if network is not None:
        Hand(network).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
