"""How faults are applied: one small protocol, one registry, one file per family of faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.injectors.base import Active, Injector, Pending, Reverted
from chaos.injectors.limits import CpuThrottle, ProcessOom
from chaos.injectors.process import ProcessKill, ProcessStop, ProcessTerminate

_OUTSIDE: Final[tuple[Injector, ...]] = (ProcessKill(), ProcessStop(), ProcessTerminate(), ProcessOom(), CpuThrottle())
INJECTORS: Final[Mapping[str, Injector]] = {injector.kind.kind: injector for injector in _OUTSIDE}
"""Those that need nothing but the processes themselves."""

__all__ = ["INJECTORS", "Active", "Injector", "Pending", "Reverted"]
