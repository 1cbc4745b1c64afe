"""The kind of fault that a GPU has. Pure values."""

from __future__ import annotations

from typing import Final

from chaos.faultkind import WORKERS, FaultKind, Fidelity, Json, Scope, params, ttl_s
from chaos.nvml.effects import CUDA_ERRORS
from chaos.nvml.xid_lines import RECOVERY_ACTIONS
from phoenix_core.xids import catalogue

_XIDS: Final[Json] = {"type": "integer", "enum": sorted(catalogue())}

GPU_XID: Final = FaultKind(
    kind="gpu_xid",
    title="GPU error (Xid)",
    description="The target's GPU (of a node: each of its GPUs) reports an Xid; the training meets an error or hangs.",
    lasting=True,
    fidelity=Fidelity.EMULATED,
    scope=Scope.GPU,
    targets=(*WORKERS, "node"),
    params_schema={
        **params(
            xid={**_XIDS, "title": "Xid"},
            then={
                "type": "array",
                "items": _XIDS,
                "maxItems": 16,
                "default": [],
                "title": "Xids that follow at once on the same GPU",
            },
            effect={
                "enum": ["default", "none", "raise", "hang", "kill"],
                "default": "default",
                "title": "What the process meets",
                "description": "default: as the catalogue says; kill: it is killed, and the Xid follows from that.",
            },
            code={
                "type": "integer",
                "enum": sorted(CUDA_ERRORS),
                "title": "CUDA error that is raised (default: the catalogue's first)",
            },
            witnesses={"enum": ["all", "nvml", "log"], "default": "all", "title": "Who tells of it"},
            mig={"type": "integer", "minimum": 0, "maximum": 14, "title": "GPU instance, on a divided GPU (MIG)"},
            recovery={
                "type": "integer",
                "minimum": 0,
                "maximum": len(RECOVERY_ACTIONS) - 1,
                "default": 1,
                "title": "Recovery action that Xid 154 announces",
                "description": ", ".join(f"{number}: {name}" for number, name in enumerate(RECOVERY_ACTIONS)),
            },
            numberless={"type": "boolean", "default": False, "title": "The log tells of the lost GPU without a number"},
            words={"type": "string", "pattern": r"^[ -~]{1,900}$", "title": "Words of the first line in the log"},
            ttl_s=ttl_s("Seconds until the GPU is well again"),
        ),
        "required": ["xid"],
    },
)
