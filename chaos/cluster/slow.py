"""A node whose links are slow, late or lossy, and the measurements that show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.cluster.holds import Hold, Refused
from chaos.cluster.layout import COORDINATOR, Network, Plane
from chaos.cluster.links import LEAST_BURST, clear_all, discipline, disciplined, links, set_all
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
        self._network, self._node = network, node
        others = [name for name in network.nodes if name != node]
        self._partners = {plane: [COORDINATOR, *others] if plane is Plane.CONTROL else others for plane in planes}
        """With whom it can be measured, on each network."""
        self._before: dict[Plane, float] = {}
        self._during: dict[Plane, float] = {}

    @property
    def disturbs(self) -> frozenset[Way]:
        return frozenset(
            way
            for plane, partners in self._partners.items()
            for other in partners
            for way in ((plane, self._node, other), (plane, other, self._node))
        )

    def begin(self, others: Collection[Hold]) -> Mapping[str, object]:
        ways = self._measurable(others)
        if hidden := [plane.value for plane in self._partners if plane not in ways]:
            which = f"on {' and '.join(hidden)}"
            raise Refused(f"another fault holds a link of this node, or of all others, {which}: nothing would show it")
        self._before = self._look(ways)
        at = time.monotonic_ns()
        self.cut()
        self._during = self._look(ways)
        if not all(self._effect.shows(self._before[plane], self._during[plane]) for plane in ways):
            self.heal()
            raise Refused(f"packets do not show it: {self._proof(before=self._before, during=self._during)}")
        return {"at": at, "proof": self._proof(before=self._before, during=self._during)}

    def end(self, others: Collection[Hold]) -> Mapping[str, object]:
        """Lifted, says the kernel; packets show it as well, unless another fault leaves no way to measure it on."""
        self.heal()
        now = self._look(self._measurable(others))
        whole = all(
            self._effect.healed(self._before.get(plane, value), self._during.get(plane, 0.0), value)
            for plane, value in now.items()
        )
        lifted = not disciplined(self._links)
        return {"healed": whole and lifted, "proof": {**self._proof(after=now), "lifted": lifted}}

    def cut(self) -> None:
        try:
            set_all(self._links, self._asked)
        except OSError as error:
            raise Refused(str(error.strerror)) from error
        self.on = True

    def heal(self) -> None:
        clear_all(self._links)
        self.on = False

    def _measurable(self, others: Collection[Hold]) -> dict[Plane, Connection]:
        """A way on each network that no other fault disturbs, where there is one."""
        disturbed = frozenset(way for other in others for way in other.disturbs)
        free = {
            plane: [name for name in partners if not {(plane, self._node, name), (plane, name, self._node)} & disturbed]
            for plane, partners in self._partners.items()
        }
        return {plane: Connection(self._network, plane, self._node, names[0]) for plane, names in free.items() if names}

    def _look(self, ways: Mapping[Plane, Connection]) -> dict[Plane, float]:
        return {plane: self._effect.look(way) for plane, way in ways.items()}

    def _proof(self, **seen: Mapping[Plane, float]) -> Mapping[str, object]:
        return {
            f"{plane.value}_{self._effect.unit}": {name: round(values[plane], 4) for name, values in seen.items()}
            for plane in next(iter(seen.values()))
        }
