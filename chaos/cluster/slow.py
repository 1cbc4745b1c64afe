"""A node whose links are slow, late or lossy, and the measurements that show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.cluster.holds import Refused
from chaos.cluster.layout import COORDINATOR, Network, Plane
from chaos.cluster.links import LEAST_BURST, clear_all, discipline, links, set_all
from chaos.cluster.measure import Connection
from chaos.cluster.probe import Way


@dataclass(frozen=True)
class Effect:
    """What is measured of a slow link, in which unit, and when that shows the fault, or its end."""

    unit: str
    look: Callable[[Connection], float]
    shows: Callable[[float, float], bool]
    healed: Callable[[float, float, float], bool]


def effect(kind: str, params: Mapping[str, Any]) -> Effect:
    """`shows(before, now)` and `healed(before, during, now)`. The machine may be busy: only what is plain counts."""
    if kind == "network_rate":
        rate = float(params["mbit_s"])
        amount = round(max(rate * 125_000 / 4, 2 * LEAST_BURST) + LEAST_BURST)
        return Effect(
            "mbit_s",
            lambda way: way.mbit_s(amount),
            lambda before, now: now < before and now < 1.5 * rate,
            lambda before, during, now: now > min(1.5 * during, before / 4),
        )
    if kind == "network_delay":
        delay_s = float(params["delay_s"])
        return Effect(
            "round_trip_s",
            lambda way: way.round_trip_s(),
            lambda before, now: now > before + delay_s,
            lambda before, during, now: now < (before + during) / 2,
        )
    return Effect(
        "lost_percent",
        lambda way: way.lost_percent(),
        lambda before, now: now > before + float(params["percent"]) / 4,
        lambda before, during, now: now < (before + during) / 2,
    )


class SlowLink:
    """A node's cables are slow, late or lossy, in both directions; what that means is measured on each network."""

    blocks: Final[frozenset[Way]] = frozenset()

    def __init__(
        self, network: Network, node: str, planes: Sequence[Plane], kind: str, params: Mapping[str, Any]
    ) -> None:
        self.on = False
        self._asked = discipline(kind, params)
        self._effect = effect(kind, params)
        self._links = links(network, [node], planes)
        other = next(name for name in network.nodes if name != node)
        self._ways = {
            plane: Connection(network, plane, node, COORDINATOR if plane is Plane.CONTROL else other)
            for plane in planes
        }
        self._before: dict[Plane, float] = {}
        self._during: dict[Plane, float] = {}

    def begin(self, blocked_by_others: frozenset[Way]) -> Mapping[str, object]:
        self._before = self._look()
        at = time.monotonic_ns()
        self.cut()
        self._during = self._look()
        shown = [plane for plane in self._ways if self._effect.shows(self._before[plane], self._during[plane])]
        if len(shown) < len(self._ways):
            self.heal()
            raise Refused(f"packets do not show it: {self._proof(before=self._before, during=self._during)}")
        return {"at": at, "proof": self._proof(before=self._before, during=self._during)}

    def end(self, blocked_by_others: frozenset[Way]) -> Mapping[str, object]:
        self.heal()
        now = self._look()
        whole = all(
            self._effect.healed(self._before.get(plane, value), self._during.get(plane, 0.0), value)
            for plane, value in now.items()
        )
        return {"healed": whole, "proof": self._proof(after=now)}

    def cut(self) -> None:
        try:
            set_all(self._links, self._asked)
        except OSError as error:
            raise Refused(str(error.strerror)) from error
        self.on = True

    def heal(self) -> None:
        clear_all(self._links)
        self.on = False

    def _look(self) -> dict[Plane, float]:
        return {plane: self._effect.look(way) for plane, way in self._ways.items()}

    def _proof(self, **seen: Mapping[Plane, float]) -> Mapping[str, object]:
        return {
            f"{plane.value}_{self._effect.unit}": {name: round(values[plane], 4) for name, values in seen.items()}
            for plane in self._ways
        }
