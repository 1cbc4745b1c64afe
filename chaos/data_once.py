"""The check that training used its data exactly once: none twice and none left out, in the steps that count. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from chaos.evidence import Evidence
from chaos.verdict import CheckResult, failed, passed, unknown
from phoenix_core.events import Event

RECORD: Final = "data"
"""The name under which a training script records which of its data a step used: a number, one more each step."""


def data_once(evidence: Evidence) -> CheckResult:
    """In the history that was kept, each rank used one piece of its data after the other.

    A step that was executed twice counts with its last commit. The record of a step can be lost with the worker that
    died in it, so one may be missing for each worker that died, and no more.
    """
    if not evidence.run.completed:
        return unknown("the run did not complete, so nobody knows its whole history")
    used = _used(evidence.run.events)
    if not used:
        return unknown(f"no step says which data it used: step.record({RECORD}=...)")
    for rank, steps in sorted(used.items()):
        for (step, data), (later, other) in pairwise(sorted(steps.items())):
            if (gap := (other - data) - (later - step)) != 0:
                return failed(_told(rank, (step, data), (later, other), gap))
    size, steps_planned = evidence.scenario.cluster.world_size, evidence.scenario.steps
    recorded = sum(len(steps) for steps in used.values())
    died = sum(event.kind == "failure_detected" and event.rank is not None for event in evidence.run.events)
    if recorded < size * steps_planned - died:
        return unknown(f"only {recorded} of {size * steps_planned} steps of all ranks say which data they used")
    return passed(f"{recorded} steps of {size} ranks used their data in order, none twice and none left out")


def _used(events: Sequence[Event]) -> dict[int, dict[int, int]]:
    """Which data each rank used in each step, by the last commit of that step."""
    used: dict[int, dict[int, int]] = {}
    for event in events:
        data = event.data.get(RECORD) if event.kind == "step_committed" else None
        if event.rank is not None and event.step is not None and isinstance(data, int):
            used.setdefault(event.rank, {})[event.step] = data
    return used


def _told(rank: int, first: tuple[int, int], second: tuple[int, int], gap: int) -> str:
    how = "left out data" if gap > 0 else "used data again"
    return f"rank {rank} {how}: {first[1]} in step {first[0]}, and then {second[1]} in step {second[0]}"
