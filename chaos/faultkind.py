"""What a kind of fault is, as users see it, and the parameters that several kinds take. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WORKERS: Final = ("rank", "random_rank", "spare")
EVERYBODY: Final = (*WORKERS, "node", "coordinator", "store")
TRIGGERS: Final = ("now", "at_step", "after_s", "phase", "recovery_phase", "poisson", "trace")

Json = Mapping[str, object]


class Fidelity(StrEnum):
    """How real a fault is; always written on the receipt."""

    REAL = "real"
    EMULATED = "emulated"


class Scope(StrEnum):
    """What a fault is applied to. A process that is hit says no more; one that is hit while it runs on (warned, slowed,
    wrong in its training), or whose network or files are hit, may well do."""

    PROCESS = "process"
    TRAINING = "training"
    STORAGE = "storage"
    NETWORK = "network"
    GPU = "gpu"


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """One kind of fault as users see it. `lasting`: it goes on until reverted, at the latest after `ttl_s`.

    `quiet`: nobody has failed and nobody need notice; training must go on.
    """

    kind: str
    title: str
    description: str
    lasting: bool
    fidelity: Fidelity
    params_schema: Json
    scope: Scope = Scope.PROCESS
    quiet: bool = False
    targets: tuple[str, ...] = WORKERS
    triggers: tuple[str, ...] = TRIGGERS

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "title": self.title,
            "description": self.description,
            "lasting": self.lasting,
            "fidelity": self.fidelity.value,
            "scope": self.scope.value,
            "quiet": self.quiet,
            "params_schema": dict(self.params_schema),
            "targets": list(self.targets),
            "triggers": list(self.triggers),
        }


def params(**properties: Json) -> Json:
    """The schema of a kind's parameters: these and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def ttl_s(title: str) -> Json:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": 3600, "default": 60, "title": title}
