"""What the checks of a trial may look at, and the steps that it shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.faults import PlannedFault
from chaos.leaks import LeakReport
from chaos.recoveries import FaultOutcome, outcomes
from chaos.scenario import Scenario
from phoenix_core.events import Event


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """What one launch left to judge: its events, and whether the job said it completed (`error`: why not)."""

    events: Sequence[Event]
    completed: bool
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the checks may look at. `asked`: every fault that was planned or requested live, also too late."""

    scenario: Scenario
    asked: Sequence[PlannedFault]
    run: PartRecord
    twin: PartRecord | None = None
    leaks: LeakReport | None = None
    outcomes: tuple[FaultOutcome, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcomes", tuple(outcomes(self.run.events)))


def steps_committed(events: Sequence[Event], world_size: int) -> int:
    """How many steps every rank has in its state: committed by itself, or restored from one that had."""
    highest: dict[int, int] = {}
    for event in events:
        if event.kind == "step_committed" and event.rank is not None and event.step is not None:
            highest[event.rank] = max(event.step + 1, highest.get(event.rank, 0))
    committed = min(highest.values()) if len(highest) == world_size else 0
    return max({committed, *(step for _, step in resumptions(events))})


def resumptions(events: Sequence[Event]) -> list[tuple[int, int]]:
    """(generation, step) of every generation that took up the work: all ranks then had the steps before it."""
    return sorted(
        (event.generation, event.step)
        for event in events
        if event.kind == "generation_resumed" and event.generation is not None and event.step is not None
    )
