"""States of runs, trials and faults, and the pure rules by which they change."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class RunState(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELLED = "CANCELLED"
    ABANDONED = "ABANDONED"

    @property
    def ended(self) -> bool:
        return self not in (RunState.QUEUED, RunState.RUNNING)


class FaultState(StrEnum):
    REQUESTED = "REQUESTED"
    INJECTED = "INJECTED"
    MISSED = "MISSED"
    REVERTED = "REVERTED"


def state_of_ended_run(trials: Sequence[RunState]) -> RunState:
    """How a run ends of whose trials each has ended: what is not known outweighs what is."""
    for state in (RunState.CANCELLED, RunState.ABANDONED):
        if state in trials:
            return state
    return RunState.FINISHED


def state_of_ended_trial(*, has_result: bool, error: str | None, cancelled: bool) -> RunState:
    """How a run ends whose trial process is gone.

    A trial that wrote its result ended in order; one that did not was killed or crashed, and nobody
    knows what it would have said. A cancel that came too late to change anything changes nothing here.
    """
    if cancelled and (error is not None or not has_result):
        return RunState.CANCELLED
    return RunState.FINISHED if has_result else RunState.ABANDONED
