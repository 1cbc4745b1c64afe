"""The process that holds network faults on a cluster of isolated nodes, for the trial that started it.

    trial --orders (stdin)--> hand --inside--> the namespaces of the nodes
          <--answers (stdout)--

It waits until the cluster is there. Orders and answers are JSON lines:

    {"apply": id, "blocks": [[plane, from, to]], "ttl_s": 30, "period_s": 2, "count": 5}
    {"apply": id, "kind": "network_rate", "node": "n1", "planes": ["data"], "params": {"mbit_s": 10}, "ttl_s": 30}
    {"apply": id, "kind": "network_reset", "node": "n1", "planes": ["data"]}
        -> {"applied": id, "at": ns, "proof": {...}} | {"refused": id, "reason"}
    {"revert": id}  -> {"reverted": id, "healed": bool, "proof": {...}}
    {"verify": id, ...}  -> the same, of a fault that a hand held which was killed
    and unasked, when a fault ends by itself: {"over": id, "reason", "healed", "proof"}

When its input ends (the trial closed it, or was killed) it heals everything and goes. Should it be killed itself, the
kernel removes its cuts, which are tied to its sockets (`cut.py`), and its child clears the links (`links.py`).
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
from chaos.cluster.holds import NANOSECONDS, Hold, Partition, Refused
from chaos.cluster.layout import COORDINATOR, Network, Plane
from chaos.cluster.links import guard
from chaos.cluster.probe import Prober
from chaos.cluster.resets import Reset
from chaos.cluster.slow import SlowLink
from chaos.procfs import start_ticks

LOOK_S: Final = 0.02


@dataclass
class Held:
    """`flips` are the times (monotonic ns) at which a flapping partition changes, next one first."""

    hold: Hold
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
            held.hold.heal()
        self._prober.close()

    def _obey(self, order: Mapping[str, Any]) -> None:
        if "revert" in order:
            name = str(order["revert"])
            held = self._held.pop(name, None)
            if held is not None:
                _tell(reverted=name, **held.hold.end(self._others()))
            else:
                _tell(reverted=name, healed=True, proof={})  # it was over, and has said so
            return
        name = str(order.get("apply") or order["verify"])
        asked = hold(self._network, self._prober, name, order)
        if "verify" in order:
            _tell(reverted=name, **asked.end(self._others()))
            return
        try:
            begun = asked.begin(self._others())
        except Refused as error:
            _tell(refused=name, reason=str(error))
            return
        if "ttl_s" not in order:
            _tell(applied=name, **begun)
            return
        flips = flip_times(int(str(begun["at"])), order.get("period_s"), order.get("count"))
        until = int(str(begun["at"])) + round(order["ttl_s"] * NANOSECONDS)
        self._held[name] = Held(asked, until, flips)
        _tell(applied=name, **begun)

    def _tick(self, now: int) -> None:
        for name, held in list(self._held.items()):
            while held.flips and now >= held.flips[0]:
                held.flips.pop(0)
                if held.flips or not held.hold.on:
                    (held.hold.heal if held.hold.on else held.hold.cut)()
                else:
                    self._finish(name, "it has flapped as often as asked")
            if name in self._held and now >= held.until:
                self._finish(name, "its time to live is over")

    def _finish(self, name: str, reason: str) -> None:
        held = self._held.pop(name)
        _tell(over=name, reason=reason, **held.hold.end(self._others()))

    def _others(self) -> list[Hold]:
        return [held.hold for held in self._held.values()]


def hold(network: Network, prober: Prober, name: str, order: Mapping[str, Any]) -> Hold:
    """What an order asks for; see above for its forms."""
    if "blocks" in order:
        ways = [(Plane(plane), sender, receiver) for plane, sender, receiver in order["blocks"]]
        return Partition(network, prober, ways, name=name)
    planes = [Plane(plane) for plane in order["planes"]]
    if order["kind"] == "network_reset":
        return Reset(network, order["node"], planes)
    return SlowLink(network, order["node"], planes, order["kind"], order["params"])


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
        guard(network)
        Hand(network).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
