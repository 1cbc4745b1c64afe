"""The kinds of fault in a job's checkpoints on disk. Pure values."""

from __future__ import annotations

from typing import Final

from chaos.faultkind import FaultKind, Fidelity, Scope, params, ttl_s

_RANKS: Final = ("rank", "random_rank")


def _kind(kind: str, title: str, description: str, **properties: object) -> FaultKind:
    return FaultKind(
        kind=kind,
        title=title,
        description=description,
        lasting="ttl_s" in properties,
        fidelity=Fidelity.REAL,
        scope=Scope.STORAGE,
        quiet=True,
        targets=_RANKS,
        params_schema=params(**properties),  # type: ignore[arg-type]
    )


CHECKPOINT_TRUNCATE: Final = _kind(
    "checkpoint_truncate",
    "Truncate a checkpoint",
    "The largest file of the rank in the newest checkpoint loses its second half.",
)
CHECKPOINT_CORRUPT: Final = _kind(
    "checkpoint_corrupt",
    "Corrupt a checkpoint",
    "One bit of the largest file of the rank in the newest checkpoint is flipped.",
)
CHECKPOINT_PARTIAL: Final = _kind(
    "checkpoint_partial",
    "Partial checkpoint",
    "The newest checkpoint lacks the file that was written last, as if its writer had died just before.",
)
CHECKPOINT_MOVE: Final = _kind(
    "checkpoint_move",
    "Move the newest checkpoint",
    "The newest checkpoint is not where it was, and comes back when the fault is reverted.",
    ttl_s=ttl_s("Seconds until it is moved back"),
)
DISK_FULL: Final = _kind(
    "disk_full",
    "Full disk",
    "The disk of the checkpoints has no room left: a small file system of the job's own is filled up.",
    ttl_s=ttl_s("Seconds until there is room again"),
)
STORAGE_KINDS: Final = (CHECKPOINT_TRUNCATE, CHECKPOINT_CORRUPT, CHECKPOINT_PARTIAL, CHECKPOINT_MOVE, DISK_FULL)
