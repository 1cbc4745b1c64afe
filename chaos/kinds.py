"""The kinds of fault that there are, as users see them. Pure values; how each is applied is in `injectors/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.cluster.shapes import SHAPES
from chaos.errors import UnknownFaultKind
from chaos.faultkind import TRIGGERS, FaultKind, Fidelity, Json, Scope
from chaos.faultkind import params as _params
from chaos.faultkind import ttl_s as _ttl_s
from chaos.kinds_gpu import GPU_XID
from chaos.kinds_inside import ACTS
from chaos.kinds_process import PROCESS_KINDS
from chaos.kinds_storage import STORAGE_KINDS


def _plane(default: str) -> Json:
    return {"enum": ["data", "control", "both"], "default": default, "title": "Networks that are hit"}


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
            "description": "Who is cut off from whom: see docs/faults.md.",
        },
        plane=_plane("both"),
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
NETWORK_RATE: Final = FaultKind(
    kind="network_rate",
    title="Slow network",
    description="The cables of the target's node carry less, in both directions (token bucket).",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.NETWORK,
    params_schema=_params(
        mbit_s={"type": "number", "minimum": 0.1, "maximum": 10_000, "default": 10, "title": "Mbit/s that are left"},
        plane=_plane("data"),
        ttl_s=_ttl_s("Seconds until it is lifted"),
    ),
)
NETWORK_DELAY: Final = FaultKind(
    kind="network_delay",
    title="Late network",
    description="What enters and what leaves the target's node is late (netem).",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.NETWORK,
    params_schema=_params(
        delay_s={"type": "number", "minimum": 0.001, "maximum": 10, "default": 0.05, "title": "Seconds, each way"},
        plane=_plane("data"),
        ttl_s=_ttl_s("Seconds until it is lifted"),
    ),
)
NETWORK_LOSS: Final = FaultKind(
    kind="network_loss",
    title="Lossy network",
    description="Packets to and from the target's node are lost at random (netem).",
    lasting=True,
    fidelity=Fidelity.REAL,
    scope=Scope.NETWORK,
    params_schema=_params(
        percent={"type": "number", "minimum": 1, "maximum": 100, "default": 10, "title": "Percent that are lost"},
        plane=_plane("data"),
        ttl_s=_ttl_s("Seconds until it is lifted"),
    ),
)
NETWORK_RESET: Final = FaultKind(
    kind="network_reset",
    title="Reset connections",
    description="Every TCP connection of the target's node is reset, once; new ones work.",
    lasting=False,
    fidelity=Fidelity.REAL,
    scope=Scope.NETWORK,
    params_schema=_params(plane=_plane("data")),
)
_ALL: Final = (
    *PROCESS_KINDS, *(kind for kind, _ in ACTS), *STORAGE_KINDS,
    NETWORK_PARTITION, NETWORK_RATE, NETWORK_DELAY, NETWORK_LOSS, NETWORK_RESET,
    GPU_XID,
)  # fmt: skip
FAULT_KINDS: Final[Mapping[str, FaultKind]] = {kind.kind: kind for kind in _ALL}


def fault_kind(kind: str) -> FaultKind:
    """Raises UnknownFaultKind, naming those that exist."""
    if kind not in FAULT_KINDS:
        raise UnknownFaultKind(f"unknown fault kind {kind!r}; there are: {', '.join(FAULT_KINDS)}", field="kind")
    return FAULT_KINDS[kind]


__all__ = ["FAULT_KINDS", "TRIGGERS", "FaultKind", "Fidelity", "Scope", "fault_kind"]
