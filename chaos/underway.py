"""Which phase the recoveries of a trial are in, told event by event. Pure.

The files of the processes are read one after another, so nothing here depends on the order of events: a phase has been
entered once all that the phases before it wait for has been seen, or once anything has that comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from phoenix_core.events import Event
from phoenix_core.timeline import Phase


@dataclass
class _Recovery:
    """What is known of the recovery that ends in one generation."""

    begun: bool = False
    resumed: bool = False
    ranks: int | None = None
    joining: frozenset[int] = frozenset()
    done: dict[str, set[int]] = field(default_factory=dict)
    told: set[Phase] = field(default_factory=set)

    @property
    def entered(self) -> Phase | None:
        """The furthest phase."""
        if not self.begun:
            return None
        if self.resumed:
            return Phase.RECOMPUTE
        if self.ranks is None:
            return Phase.QUIESCE
        everybody = frozenset(range(self.ranks))
        quiet = self._have("worker_quiesced", everybody - self.joining)
        if self._have("communicator_ready", everybody):
            return Phase.RESTORE
        if quiet and self._have("model_built", self.joining):
            return Phase.RECONSTRUCT
        return Phase.REPLACE if quiet else Phase.QUIESCE

    def _have(self, kind: str, ranks: frozenset[int]) -> bool:
        return self.done.get(kind, set()) >= ranks


class Underway:
    """Feed it every event; `observe` answers with the phases that a recovery has entered by it."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._recoveries: dict[int, _Recovery] = {}
        self._undetected = False
        for event in events:
            self.observe(event)

    @property
    def current(self) -> Phase | None:
        """Where the latest recovery is; None before the first fault."""
        if self._undetected:
            return Phase.DETECT
        begun = [generation for generation, recovery in self._recoveries.items() if recovery.begun]
        return self._recoveries[max(begun)].entered if begun else None

    def observe(self, event: Event) -> list[Phase]:
        if event.kind == "fault_injected":
            # A spare holds no rank: nobody has to recover from its loss.
            self._undetected = self._undetected or event.rank is not None
            return [Phase.DETECT] if event.rank is not None else []
        if event.generation is None or event.kind not in _TELLING:
            return []
        recovery = self._recoveries.setdefault(event.generation, _Recovery())
        self._take(recovery, event)
        furthest = recovery.entered
        if furthest is None:
            return []
        phases = list(Phase)
        new = [phase for phase in phases[1 : phases.index(furthest) + 1] if phase not in recovery.told]
        recovery.told.update(new)
        return new

    def _take(self, recovery: _Recovery, event: Event) -> None:
        if event.kind == "failure_detected":
            if event.rank is not None:
                recovery.begun, self._undetected = True, False
        elif event.kind == "world_formed":
            ranks, joining = event.data.get("ranks"), event.data.get("joining")
            recovery.ranks = len(ranks) if isinstance(ranks, list) else None
            recovery.joining = frozenset(joining) if isinstance(joining, list) else frozenset()
        elif event.kind == "generation_resumed":
            recovery.resumed = True
        elif event.rank is not None:
            recovery.done.setdefault(event.kind, set()).add(event.rank)


_TELLING = frozenset(
    ("failure_detected", "world_formed", "worker_quiesced", "model_built", "communicator_ready", "generation_resumed")
)
