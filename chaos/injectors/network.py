"""Network faults: whom they part is decided here; a process inside the nodes' namespaces (the hand) does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaos.cluster.client import HandClient
from chaos.cluster.layout import Network
from chaos.cluster.shapes import blocks, planes_of
from chaos.errors import TargetGone
from chaos.faults import Injection, PlannedFault
from chaos.injectors.base import Active, Injector, Reverted
from chaos.kinds import NETWORK_PARTITION, FaultKind
from chaos.roster import WorkerInfo


def network_injectors(hand: HandClient) -> Mapping[str, Injector]:
    """Those that work on the cluster that this hand is in."""
    return {injector.kind.kind: injector for injector in (NetworkPartition(hand),)}


class NetworkPartition:
    """Packets between the sides are dropped; the shape begins at the target's node."""

    kind: Final[FaultKind] = NETWORK_PARTITION

    def __init__(self, hand: HandClient) -> None:
        self._hand = hand

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        network, params = Network.read(self._hand.file), fault.params
        if network is None or worker.node not in network.nodes:
            raise TargetGone(f"{worker.worker} runs on no isolated node")
        parted = blocks(str(params["shape"]), planes_of(str(params["plane"])), network.nodes, worker.node)
        limits = {name: params[name] for name in ("ttl_s", "period_s", "count") if name in params}
        return _Held(self._hand, fault, worker, self._hand.apply(fault.id, parted, **limits))


class _Held:
    """A fault that the hand holds."""

    def __init__(self, hand: HandClient, fault: PlannedFault, worker: WorkerInfo, answer: Mapping[str, Any]) -> None:
        self._hand = hand
        self._reverted: Reverted | None = None
        self.ttl_s = float(str(fault.params["ttl_s"]))
        self.injection = Injection(
            fault=fault.id,
            kind=NETWORK_PARTITION.kind,
            at=int(answer["at"]),
            worker=worker.worker,
            rank=worker.rank,
            node=worker.node,
            pid=worker.pid,
            fidelity=NETWORK_PARTITION.fidelity,
            trigger=fault.trigger.to_json(),
            params=fault.params,
            proof=answer["proof"],
        )

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
