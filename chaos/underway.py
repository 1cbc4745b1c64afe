"""Which phases of a recovery are going on, told event by event. Pure.

The parts of a recovery overlap: groups are formed while the spare still builds its model. A timeline charges each
moment to one phase, so that they add up; for a fault, a phase begins with its work and is over when that is done:

    detect        a fault was injected                        somebody noticed, or it was taken back before
    quiesce       somebody noticed                            all survivors are out of the broken step
    replace       a spare got the rank                        its model is built
    reconstruct   all survivors are out of the broken step    the groups of all ranks work
    restore       groups work and models are built            all ranks resumed
    recompute     all ranks resumed                           all have committed the first new step

The files of the processes are read one after another, so nothing here depends on the order of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.wanted import is_quiet
from phoenix_core.events import Event
from phoenix_core.timeline import Phase


@dataclass
class _Recovery:
    """What is known of the recovery that ends in one generation; `done`: which ranks have told of an event."""

    begun: bool = False
    resumed_at: int | None = None
    ranks: int | None = None
    joining: frozenset[int] = frozenset()
    done: dict[str, set[int]] = field(default_factory=dict)
    told: set[Phase] = field(default_factory=set)

    def take(self, event: Event) -> None:
        if event.kind == "failure_detected":
            self.begun = self.begun or event.rank is not None
        elif event.kind == "world_formed":
            ranks, joining = event.data.get("ranks"), event.data.get("joining")
            self.ranks = len(ranks) if isinstance(ranks, list) else None
            self.joining = frozenset(joining) if isinstance(joining, list) else frozenset()
        elif event.kind == "generation_resumed":
            self.resumed_at = event.step
        elif event.rank is not None and (event.kind != "step_committed" or event.step == self.resumed_at):
            self.done.setdefault(event.kind, set()).add(event.rank)

    @property
    def phases(self) -> dict[Phase, bool]:
        """Those that have begun, and whether they are over."""
        if not self.begun:
            return {}
        if self.ranks is None:
            return {Phase.QUIESCE: False}
        everybody, resumed = frozenset(range(self.ranks)), self.resumed_at is not None
        quiet = resumed or self._have("worker_quiesced", everybody - self.joining)
        built = resumed or self._have("model_built", self.joining)
        ready = resumed or self._have("communicator_ready", everybody)
        found = {Phase.QUIESCE: quiet, Phase.REPLACE: built}
        if quiet:
            found[Phase.RECONSTRUCT] = ready
        if quiet and ready and built:
            found[Phase.RESTORE] = resumed
        if resumed:
            found[Phase.RECOMPUTE] = self._have("step_committed", everybody)
        return found

    def _have(self, kind: str, ranks: frozenset[int]) -> bool:
        return self.done.get(kind, set()) >= ranks


class Underway:
    """Feed it every event; `observe` answers with the phases that have begun by it."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._recoveries: dict[int, _Recovery] = {}
        self._undetected: set[object] = set()
        for event in events:
            self.observe(event)

    @property
    def going_on(self) -> frozenset[Phase]:
        """What is being done now, in the latest recovery; nothing between recoveries."""
        begun = [generation for generation, recovery in self._recoveries.items() if recovery.begun]
        phases = self._recoveries[max(begun)].phases if begun else {}
        open_phases = {phase for phase, over in phases.items() if not over}
        return frozenset(open_phases | ({Phase.DETECT} if self._undetected else set()))

    def observe(self, event: Event) -> list[Phase]:
        if event.kind == "fault_injected":
            if event.rank is None or is_quiet(event):
                return []  # a spare holds no rank, and by a quiet fault nobody is lost: there is nothing to recover
            self._undetected.add(event.data.get("fault"))
            return [Phase.DETECT]
        if event.kind == "fault_reverted":
            self._undetected.discard(event.data.get("fault"))
            return []
        if event.generation is None or event.kind not in _TELLING:
            return []
        if event.kind == "failure_detected" and event.rank is not None:
            self._undetected.clear()
        recovery = self._recoveries.setdefault(event.generation, _Recovery())
        recovery.take(event)
        new = [phase for phase in recovery.phases if phase not in recovery.told]
        recovery.told.update(new)
        return new


_TELLING = frozenset(
    {
        "failure_detected",
        "world_formed",
        "worker_quiesced",
        "model_built",
        "communicator_ready",
        "generation_resumed",
        "step_committed",
    }
)
