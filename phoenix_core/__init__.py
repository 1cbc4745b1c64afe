"""PHOENIX's resilient training runtime. What a training script needs is `session`; see ARCHITECTURE.md.

`session` is loaded when it is first asked for: the coordinator and the agents import this package too,
and must not pay for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phoenix_core.training import Session, Step, session

__all__ = ["Session", "Step", "session"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import phoenix_core.training as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
