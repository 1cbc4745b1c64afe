"""Goodput: which part of the time went into steps that count. Pure.

The time of a step is that of its last execution, the one that was kept, in the middle of the ranks (they wait for each
other); what was executed and lost, detection, recovery and the time between steps make the rest. The clock runs from
the first step's begin to the last commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from phoenix_core.events import Event


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """`kept_s` of `elapsed_s`."""

    kept_s: float
    elapsed_s: float

    @property
    def share(self) -> float:
        return self.kept_s / self.elapsed_s if self.elapsed_s else 0.0

    def to_json(self) -> dict[str, float]:
        return {"goodput": self.share, "kept_s": self.kept_s, "elapsed_s": self.elapsed_s}

    @staticmethod
    def from_json(data: Mapping[str, float]) -> Goodput:
        return Goodput(kept_s=data["kept_s"], elapsed_s=data["elapsed_s"])


def goodput(events: Iterable[Event]) -> Goodput | None:
    """Of one run; None where no step was committed."""
    kept: dict[tuple[int, int], Event] = {}
    begun: list[int] = []
    for event in events:
        took = _duration(event)
        if event.kind == "phase_entered":
            begun.append(event.at)
        elif event.rank is not None and event.step is not None and took is not None:
            begun.append(event.at - took)
            kept[event.step, event.rank] = event
    if not kept:
        return None
    by_step: dict[int, list[int]] = {}
    for (step, _), event in kept.items():
        by_step.setdefault(step, []).append(_duration(event) or 0)
    elapsed = max(event.at for event in kept.values()) - min(begun)
    time = sum(median(durations) for durations in by_step.values())
    return Goodput(kept_s=min(time, elapsed) / 1e9, elapsed_s=elapsed / 1e9)


def total(parts: Sequence[Goodput]) -> Goodput | None:
    """Of several runs: all kept time over all time."""
    if not parts:
        return None
    return Goodput(kept_s=sum(part.kept_s for part in parts), elapsed_s=sum(part.elapsed_s for part in parts))


def _duration(event: Event) -> int | None:
    """Of a step that this rank executed to its end; one that it was only given has none."""
    took = event.data.get("duration_ns") if event.kind == "step_committed" else None
    return took if isinstance(took, int) else None
