"""The kinds of fault that there are, as users see them. Pure values; how each is applied is in `injectors/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from chaos.cluster.shapes import SHAPES
from chaos.errors import UnknownFaultKind

TARGETS: Final = ("rank", "random_rank", "spare")
TRIGGERS: Final = ("now", "at_step", "after_s", "phase")

Json = Mapping[str, object]


class Fidelity(StrEnum):
    """How real a fault is; always written on the receipt."""

    REAL = "real"
    EMULATED = "emulated"


class Scope(StrEnum):
    """What a fault is applied to. A process that is hit says no more; one whose network is hit may well do."""

    PROCESS = "process"
    NETWORK = "network"


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """One kind of fault as users see it. `lasting`: it goes on until reverted, at the latest after `ttl_s`."""

    kind: str
    title: str
    description: str
    lasting: bool
    fidelity: Fidelity
    params_schema: Json
    scope: Scope = Scope.PROCESS
    targets: tuple[str, ...] = TARGETS
    triggers: tuple[str, ...] = TRIGGERS

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "title": self.title,
            "description": self.description,
            "lasting": self.lasting,
            "fidelity": self.fidelity.value,
            "scope": self.scope.value,
            "params_schema": dict(self.params_schema),
            "targets": list(self.targets),
            "triggers": list(self.triggers),
        }


def _params(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _ttl_s(title: str) -> Json:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "default": 60, "title": title}


PROCESS_KILL: Final = FaultKind(
    kind="process_kill",
    title="Kill process",
    description="SIGKILL: the process ends at once, without a chance to say so.",
    lasting=False,
    fidelity=Fidelity.REAL,
    params_schema=_params(),
)
PROCESS_STOP: Final = FaultKind(
    kind="process_stop",
    title="Freeze process",
    description="SIGSTOP: the process stays, but does nothing more (a hang). SIGCONT on revert, if it still lives.",
    lasting=True,
    fidelity=Fidelity.REAL,
    params_schema=_params(ttl_s=_ttl_s("Seconds until it is resumed")),
)
NETWORK_PARTITION: Final = FaultKind(
    kind="network_partition",
    title="Partition network",
    description="Packets between the sides are dropped, silently. The shape begins at the node of the target.",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.NETWORK,
    params_schema=_params(
        shape={
            "enum": list(SHAPES),
            "default": "isolate",
            "title": "Shape",
            "description": "Who is cut off from whom: see the README.",
        },
        plane={"enum": ["data", "control", "both"], "default": "both", "title": "Networks that are cut"},
        ttl_s=_ttl_s("Seconds until it is healed"),
        period_s={
            "type": "number",
            "minimum": 0.2,
            "maximum": 3600,
            "title": "Seconds of a period, if it flaps",
            "description": "Cut for one half of each period and whole for the other.",
        },
        count={"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1, "title": "Periods, if it flaps"},
    ),
)
FAULT_KINDS: Final[Mapping[str, FaultKind]] = {
    kind.kind: kind for kind in (PROCESS_KILL, PROCESS_STOP, NETWORK_PARTITION)
}


def fault_kind(kind: str) -> FaultKind:
    """Raises UnknownFaultKind, naming those that exist."""
    if kind not in FAULT_KINDS:
        raise UnknownFaultKind(f"unknown fault kind {kind!r}; there are: {', '.join(FAULT_KINDS)}", field="kind")
    return FAULT_KINDS[kind]
