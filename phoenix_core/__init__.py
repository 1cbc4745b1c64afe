"""PHOENIX's resilient training runtime. What a training script needs is `session` and `Batches`; see ARCHITECTURE.md.

They are loaded when they are first asked for: the coordinator and the agents import this package too,
and must not pay for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phoenix_core.data import Batches
    from phoenix_core.training import Session, Step, session

__all__ = ["Batches", "Session", "Step", "session"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        home = "data" if name == "Batches" else "training"
        return getattr(import_module(f"phoenix_core.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
