"""What goes wrong, and for whom: pure values with their JSON forms; when is in `triggers`.

    Target   {"rank": 2} | {"random_rank": true} | {"spare": true} | ... (`targets`)

A `PlannedFault` joins a kind with both; an `Injection` is the receipt of one that was applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.cluster.shapes import LEAST_NODES
from chaos.contradictions import contradiction
from chaos.errors import InvalidFault
from chaos.fields import text
from chaos.kinds import FaultKind, Fidelity, Scope, fault_kind
from chaos.schema import violations, with_defaults
from chaos.targets import (
    Coordinator,
    Node,
    RandomRank,
    Rank,
    Spare,
    Store,
    Target,
    check_rank,
    check_target,
    target_from_json,
)
from chaos.triggers import OnPhase, Trigger, trigger_from_json
from phoenix_core.events import Event

Json = Mapping[str, object]


# --- both ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """A fault that shall happen. `id` is unique within a trial and names its receipt."""

    id: str
    kind: str
    target: Target
    trigger: Trigger
    params: Json = field(default_factory=dict)
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "kind": self.kind,
            "target": self.target.to_json(),
            "trigger": self.trigger.to_json(),
            "params": dict(self.params),
            "reason": self.reason,
        }

    @staticmethod
    def from_json(data: Json, *, id: str = "") -> PlannedFault:
        """Raises InvalidFault. `id` is used where the document has none; defaults of params are filled in."""
        unknown = sorted(set(data) - {"id", "fault", "kind", "target", "trigger", "params", "reason"})
        if unknown:
            raise InvalidFault(f"unknown field {unknown[0]!r}", field=unknown[0])
        kind = fault_kind(text(data.get("kind"), "kind"))
        target = target_from_json(data.get("target"))
        trigger = trigger_from_json(data.get("trigger", {"now": True}))
        _allowed("target", target.to_json(), kind.targets, kind)
        _allowed("trigger", trigger.to_json(), kind.triggers, kind)
        return PlannedFault(
            id=text(data.get("id") or data.get("fault") or id, "id"),
            kind=kind.kind,
            target=target,
            trigger=trigger,
            params=_checked_params(kind, data.get("params") or {}),
            reason=str(data.get("reason") or ""),
        )

    def check_cluster(
        self, *, nodes: int, world_size: int, spares: int, isolated: bool, checkpoints: bool = True
    ) -> None:
        """Raises InvalidFault where it cannot happen in a cluster of this shape (`nodes`: those of spares too)."""
        check_target(self.target, nodes=nodes, world_size=world_size, spares=spares)
        if fault_kind(self.kind).scope is Scope.NETWORK and not isolated:
            need = f"{self.kind} needs nodes with a network of their own: set cluster.isolation to namespaces"
            raise InvalidFault(need, field="kind")
        if fault_kind(self.kind).scope is Scope.STORAGE and not checkpoints:
            raise InvalidFault(f"{self.kind} needs checkpoints on disk: set checkpoint_every", field="kind")
        least = LEAST_NODES.get(str(self.params.get("shape")), 2) if "shape" in self.params else 1
        if nodes < least:
            shape = self.params["shape"]
            raise InvalidFault(f"{shape} needs {least} nodes or more, there are {nodes}", field="params.shape")
        if (owner := self.params.get("of_rank")) is not None:
            check_rank(int(str(owner)), world_size, "params.of_rank")

    def check_phases(self, workload: str, phases: Sequence[str]) -> None:
        """Raises InvalidFault where the trigger waits for a phase that this workload never enters."""
        if isinstance(self.trigger, OnPhase) and self.trigger.phase not in phases:
            never = f"the workload {workload} never enters {self.trigger.phase}"
            raise InvalidFault(f"{never}; its phases are: {', '.join(phases)}", field="trigger.phase")


@dataclass(frozen=True, kw_only=True)
class Injection:
    """The receipt: who was hit (held `rank` then), when (monotonic ns, taken before the act), how real.

    `proof` is what was seen of a fault that shows on nobody's process: packets that passed before and no longer.
    """

    fault: str
    kind: str
    at: int
    worker: str
    rank: int | None
    node: str | None
    pid: int
    fidelity: Fidelity
    trigger: Json
    params: Json = field(default_factory=dict)
    proof: Json = field(default_factory=dict)

    def event_fields(self) -> dict[str, object]:
        """What `EventWriter.emit("fault_injected", ...)` takes."""
        return {
            "at": self.at,
            "worker": self.worker,
            "rank": self.rank,
            "node": self.node,
            "fault": self.fault,
            "kind": self.kind,
            "pid": self.pid,
            "fidelity": self.fidelity.value,
            "trigger": dict(self.trigger),
            "params": dict(self.params),
            "proof": dict(self.proof),
        }

    @staticmethod
    def from_event(event: Event) -> Injection:
        """The receipt that a `fault_injected` event carries."""
        data = event.data
        trigger, params, proof = data.get("trigger"), data.get("params"), data.get("proof")
        return Injection(
            fault=str(data["fault"]),
            kind=str(data["kind"]),
            at=event.at,
            worker=event.worker or "",
            rank=event.rank,
            node=event.node,
            pid=int(str(data["pid"])),
            fidelity=Fidelity(str(data["fidelity"])),
            trigger=trigger if isinstance(trigger, Mapping) else {},
            params=params if isinstance(params, Mapping) else {},
            proof=proof if isinstance(proof, Mapping) else {},
        )


# --- reading ---------------------------------------------------------------------------------------------------------


def _allowed(where: str, chosen: Json, names: tuple[str, ...], kind: FaultKind) -> None:
    if not set(chosen) & set(names):
        raise InvalidFault(f"{kind.kind} allows: {', '.join(names)}", field=where)


def _checked_params(kind: FaultKind, params: object) -> dict[str, object]:
    if not isinstance(params, Mapping):
        raise InvalidFault(f"must be a mapping, not {params!r}", field="params")
    for violation in violations(dict(params), kind.params_schema):
        raise InvalidFault(violation.message, field=f"params.{violation.field}".rstrip("."))
    whole = with_defaults(params, kind.params_schema)
    if (wrong := contradiction(kind.kind, whole)) is not None:
        raise InvalidFault(wrong[1], field=f"params.{wrong[0]}")
    return whole


__all__ = [
    "Coordinator",
    "Injection",
    "Node",
    "PlannedFault",
    "RandomRank",
    "Rank",
    "Spare",
    "Store",
    "Target",
    "target_from_json",
]
