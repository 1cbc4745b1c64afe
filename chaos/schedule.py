"""Which planned faults are due, given the events so far and the time. Pure: no clock, no file, no process.

A fault fires once, so a rollback that begins a step again does not fire it again, unless its trigger has a `repeat`:
then each further time has an id of its own (`kill.2`). A step or phase that had begun before a live request was
accepted has gone by: that fault is missed, and says so, rather than late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random

from chaos.expansion import repeat_id
from chaos.faults import PlannedFault, RandomRank, Rank
from chaos.triggers import AfterSeconds, AtStep, Now, OnPhase, OnRecovery, Poisson, Trace
from chaos.underway import Underway
from phoenix_core.events import Event

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Due:
    """A fault to apply now; its target is no longer random. `late` tells why it can only be missed."""

    fault: PlannedFault
    late: str = ""


@dataclass
class _Waiting:
    """A fault that may still fire: `live` since a request at this time; None: planned from the start.

    `fired`: how often it has; `life`: the generation of the target (or its worker, where the runtime knows no
    generations) that it fired in, which does not begin a step twice.
    """

    fault: PlannedFault
    live: int | None
    entries: int = 0
    fired: int = 0
    life: object = None

    def concerns(self, event: Event) -> bool:
        target = self.fault.target
        return not isinstance(target, Rank) or event.rank == target.rank

    def may_begin(self, event: Event) -> bool:
        """Whether the step that this event is of may be begun for the first time since the fault fired."""
        return self.fired == 0 or _life(event) != self.life

    def fire(self, event: Event | None) -> PlannedFault:
        self.fired, self.entries, self.life = self.fired + 1, 0, None if event is None else _life(event)
        return replace(self.fault, id=repeat_id(self.fault, self.fired))

    @property
    def is_spent(self) -> bool:
        return self.fired >= getattr(self.fault.trigger, "repeat", 1)


def _life(event: Event) -> object:
    return event.worker if event.generation is None else event.generation


class Schedule:
    """Feed it every event in the order read (`observe`) and the time (`tick`); both answer with what is due.

    `add` takes planned faults at the start and live requests later. Random ranks are drawn from the seed and the
    fault's id alone, so the order of requests changes nothing.
    """

    def __init__(self, faults: Iterable[PlannedFault] = (), *, seed: int, world_size: int) -> None:
        self._seed = seed
        self._world_size = world_size
        self._waiting: dict[str, _Waiting] = {}
        self._armed: list[tuple[int, PlannedFault]] = []
        self._underway = Underway()
        self._known: set[str] = set()
        self._begun: dict[int | None, int] = {}
        self._has_world = False
        self._first_step_at: int | None = None
        for fault in faults:
            self.add(fault)

    @property
    def pending(self) -> tuple[PlannedFault, ...]:
        """What has not fired yet, in the order it was planned; what only waits for its offset comes last."""
        unfired = [waiting.fault for waiting in self._waiting.values() if not waiting.fired]
        return (*unfired, *(fault for _, fault in self._armed))

    @property
    def needs_events(self) -> bool:
        """Whether something waits for a step or phase, so that the next event may be the one."""
        return any(not isinstance(waiting.fault.trigger, AfterSeconds) for waiting in self._waiting.values()) or (
            bool(self._waiting) and self._first_step_at is None
        )

    def withdraw(self) -> tuple[PlannedFault, ...]:
        """Plan nothing more: what had not fired, which now never will."""
        pending = self.pending
        self._waiting.clear()
        self._armed.clear()
        return pending

    def knows(self, fault_id: str) -> bool:
        """Whether a fault of this id was ever planned (a repeated request must not hit twice)."""
        return fault_id in self._known

    def add(self, fault: PlannedFault, *, now: int | None = None) -> list[Due]:
        """Plan a fault; `now` (monotonic ns) marks a live request. It may be due, or too late, at once."""
        assert not self.knows(fault.id), f"fault {fault.id} is planned twice"
        assert not isinstance(fault.trigger, Poisson | Trace), f"fault {fault.id} stands for many: expand it first"
        self._known.add(fault.id)
        fault = drawn(fault, seed=self._seed, world_size=self._world_size)
        waiting = _Waiting(fault=fault, live=now)
        self._waiting[fault.id] = waiting
        if reason := self._gone_by(waiting):
            del self._waiting[fault.id]
            return [Due(fault=fault, late=reason)]
        return self.tick(now) if now is not None else []

    def tick(self, now: int) -> list[Due]:
        """What is due at this time: triggers that wait for no event."""

        def due(waiting: _Waiting) -> bool:
            trigger = waiting.fault.trigger
            if isinstance(trigger, Now):
                return self._has_world
            return isinstance(trigger, AfterSeconds) and (start := self._starts(waiting)) is not None and now >= start

        arrived = [fault for at, fault in self._armed if now >= at]
        self._armed = [(at, fault) for at, fault in self._armed if now < at]
        return self._fire_all(due) + [Due(fault=fault) for fault in arrived]

    @property
    def next_time(self) -> int | None:
        """The earliest time (monotonic ns) at which `tick` has something new, as far as is known."""
        times = [
            start
            for waiting in self._waiting.values()
            if isinstance(waiting.fault.trigger, AfterSeconds) and (start := self._starts(waiting)) is not None
        ]
        return min([*times, *(at for at, _ in self._armed)], default=None)

    def observe(self, event: Event) -> list[Due]:
        """What this event triggers."""
        due = [one for phase in self._underway.observe(event) for one in self._recovers(event, phase)]
        if event.kind == "world_formed":
            self._has_world = True
            return due + self._fire_all(lambda waiting: isinstance(waiting.fault.trigger, Now))
        if event.kind == "phase_entered" and event.step is not None:
            return self._entered(event, event.step)
        if event.kind == "step_committed" and event.step is not None:
            # A runtime that reports no phases still tells where steps begin: at the end of the one before.
            return self._began(event, event.step + 1)
        return due

    def _recovers(self, event: Event, phase: str) -> list[Due]:
        due: list[Due] = []
        for waiting in list(self._waiting.values()):
            trigger = waiting.fault.trigger
            if isinstance(trigger, OnRecovery) and trigger.recovery_phase == phase and not _is_before(event, waiting):
                waiting.entries += 1
                if waiting.entries >= trigger.occurrence:
                    due += self._fire(waiting, event, offset_s=trigger.offset_s)
        return due

    def _entered(self, event: Event, step: int) -> list[Due]:
        due = self._began(event, step)
        for waiting in list(self._waiting.values()):
            trigger = waiting.fault.trigger
            if not isinstance(trigger, OnPhase) or not waiting.concerns(event) or _is_before(event, waiting):
                continue
            begun = trigger.step is None or (trigger.step == step and waiting.may_begin(event))
            if event.data.get("phase") == trigger.phase and begun:
                waiting.entries += 1
                if waiting.entries >= trigger.occurrence:
                    due += self._fire(waiting, event, offset_s=trigger.offset_s)
        return due

    def _began(self, event: Event, step: int) -> list[Due]:
        if self._first_step_at is None:
            self._first_step_at = event.at
        for place in (event.rank, None):
            self._begun[place] = max(step, self._begun.get(place, -1))

        def due(waiting: _Waiting) -> bool:
            trigger = waiting.fault.trigger
            if not isinstance(trigger, AtStep) or not waiting.concerns(event):
                return False
            # Again only where it begins again: a rollback may well resume after this step.
            return step == trigger.at_step and waiting.may_begin(event) if waiting.fired else step >= trigger.at_step

        return self._fire_all(due, event)

    def _gone_by(self, waiting: _Waiting) -> str:
        trigger, target = waiting.fault.trigger, waiting.fault.target
        begun = self._begun.get(target.rank if isinstance(target, Rank) else None, -1)
        if isinstance(trigger, AtStep) and begun >= trigger.at_step:
            return f"step {trigger.at_step} had begun before the request came (now: {begun})"
        if isinstance(trigger, OnPhase) and trigger.step is not None and begun > trigger.step:
            return f"step {trigger.step} was over before the request came (now: {begun})"
        return ""

    def _starts(self, waiting: _Waiting) -> int | None:
        trigger = waiting.fault.trigger
        assert isinstance(trigger, AfterSeconds)
        base = self._first_step_at if waiting.live is None else waiting.live
        return None if base is None else base + round(trigger.after_s * NANOSECONDS)

    def _fire_all(self, due: Callable[[_Waiting], bool], event: Event | None = None) -> list[Due]:
        return [one for waiting in list(self._waiting.values()) if due(waiting) for one in self._fire(waiting, event)]

    def _fire(self, waiting: _Waiting, event: Event | None, *, offset_s: float = 0.0) -> list[Due]:
        fault = waiting.fire(event)
        if waiting.is_spent:
            del self._waiting[waiting.fault.id]
        if event is not None and offset_s > 0:
            self._armed.append((event.at + round(offset_s * NANOSECONDS), fault))
            return []
        return [Due(fault=fault)]


def drawn(fault: PlannedFault, *, seed: int, world_size: int) -> PlannedFault:
    """With a rank in place of a random one."""
    if not isinstance(fault.target, RandomRank):
        return fault
    return replace(fault, target=Rank(rank=Random(f"{seed}/{fault.id}").randrange(world_size)))


def _is_before(event: Event, waiting: _Waiting) -> bool:
    """Read after a live request came, but it happened before."""
    return waiting.live is not None and event.at < waiting.live
