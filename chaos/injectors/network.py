"""Network faults: whom they part is decided here; a process inside the nodes' namespaces (the hand) does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaos.cluster.client import HandClient
from chaos.cluster.layout import Network
from chaos.cluster.shapes import blocks, planes_of
from chaos.errors import TargetGone
from chaos.faults import PlannedFault
from chaos.injectors.base import Active, Injector, Reverted, receipt
from chaos.kinds import NETWORK_DELAY, NETWORK_LOSS, NETWORK_PARTITION, NETWORK_RATE, NETWORK_RESET, FaultKind
from chaos.roster import WorkerInfo

LIMITS: Final = ("ttl_s", "period_s", "count")


def network_injectors(hand: HandClient) -> Mapping[str, Injector]:
    """Those that work on the cluster that this hand is in."""
    links = (NETWORK_RATE, NETWORK_DELAY, NETWORK_LOSS, NETWORK_RESET)
    injectors: list[Injector] = [NetworkPartition(hand), *(LinkFault(kind, hand) for kind in links)]
    return {injector.kind.kind: injector for injector in injectors}


class NetworkPartition:
    """Packets between the sides are dropped; the shape begins at the target's node."""

    kind: Final[FaultKind] = NETWORK_PARTITION

    def __init__(self, hand: HandClient) -> None:
        self._hand = hand

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        network, node = _place(self._hand, worker)
        params = fault.params
        parted = blocks(str(params["shape"]), planes_of(str(params["plane"])), network.nodes, node)
        return _Held(self._hand, self.kind, fault, worker, self._hand.part(fault.id, parted, **_limits(fault)))


class LinkFault:
    """The cables of the target's node are slow, late, lossy, or all connections over them are reset."""

    def __init__(self, kind: FaultKind, hand: HandClient) -> None:
        self.kind = kind
        self._hand = hand

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        _, node = _place(self._hand, worker)
        planes = [plane.value for plane in planes_of(str(fault.params["plane"]))]
        order = {"kind": fault.kind, "node": node, "planes": planes, "params": dict(fault.params), **_limits(fault)}
        return _Held(self._hand, self.kind, fault, worker, self._hand.apply(fault.id, **order))


def _place(hand: HandClient, worker: WorkerInfo) -> tuple[Network, str]:
    network = Network.read(hand.file)
    if network is None or worker.node is None or worker.node not in network.nodes:
        raise TargetGone(f"{worker.worker} runs on no isolated node")
    return network, worker.node


def _limits(fault: PlannedFault) -> dict[str, object]:
    return {name: fault.params[name] for name in LIMITS if name in fault.params}


class _Held:
    """A fault that the hand holds, if it lasts."""

    def __init__(
        self, hand: HandClient, kind: FaultKind, fault: PlannedFault, worker: WorkerInfo, answer: Mapping[str, Any]
    ) -> None:
        self._hand = hand
        self._reverted = None if kind.lasting else Reverted(alive=False)
        self.ttl_s = float(str(fault.params["ttl_s"])) if kind.lasting else None
        self.injection = receipt(fault, kind, worker, int(answer["at"]), answer["proof"])

    @property
    def over(self) -> str:
        return self._hand.over(self.injection.fault)

    def revert(self) -> Reverted:
        if self._reverted is None:
            seen = self._hand.revert(self.injection.fault)
            self._reverted = Reverted(alive=bool(seen["healed"]), proof=seen["proof"])
        return self._reverted

    def close(self) -> None:
        """The hand goes on to hold it, until it is reverted or the trial ends."""
