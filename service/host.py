"""What the machine of this service can inject, asked seldom: trying it out takes seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from chaos.cluster.abilities import Abilities, abilities
from chaos.disk import trouble as no_disk
from chaos.kinds import FAULT_KINDS, FaultKind, Scope
from chaos.kinds_storage import DISK_FULL
from chaos.nvml.build import no_gpus

# Somebody may have lifted a refusal meanwhile.
_ASK_AGAIN_S = 60.0


def trouble_with_kind(kind: FaultKind, can: Callable[[], Abilities]) -> str:
    """Why faults of this kind cannot be injected here, and what would help; empty if they can."""
    if kind.scope is Scope.GPU:
        return no_gpus()
    if kind.kind == DISK_FULL.kind:
        return no_disk()
    return can().trouble(kind.kind) if hasattr(Abilities, kind.kind) else ""


class Host:
    """Safe to ask from any thread; while one tries it out the others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def trouble(self, kind: str) -> str:
        """As `trouble_with_kind`; what can be done is asked once, what cannot be now and then."""
        found = FAULT_KINDS.get(kind)
        if found is None:
            return ""
        with self._lock:
            at, known = self._known.get(kind, (0.0, "not asked"))
            if known and (kind not in self._known or time.monotonic() - at > _ASK_AGAIN_S):
                known = trouble_with_kind(found, abilities)
                self._known[kind] = (time.monotonic(), known)
            return known
