"""Which measurements there are and what became of each: a value, or a reason, never nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks.peers.contenders import Contender
from benchmarks.peers.entries import KINDS
from benchmarks.peers.observed import Sample
from benchmarks.stats import Spread

METRICS: Final = ("cost", "overhead", *KINDS)
NOT_YET: Final = "not measured yet"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement of one contender. `reason` says why there is none; `stamp`: of which code and versions it is."""

    reason: str = ""
    samples: tuple[Sample, ...] = ()
    twin: tuple[str, str] | None = None
    value: Mapping[str, Any] = field(default_factory=dict)
    stamp: Mapping[str, Any] = field(default_factory=dict)
    wanted: int = 0

    @property
    def recovered(self) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if sample.recovery_s is not None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Cell:
        samples = tuple(Sample(**sample) for sample in data["samples"])
        twin = None if data["twin"] is None else (str(data["twin"][0]), str(data["twin"][1]))
        return Cell(**{**data, "samples": samples, "twin": twin})


Cells = Mapping[str, Cell]


def cells_of(document: Mapping[str, Any]) -> dict[str, Cell]:
    """Those of a published peers.json. Raises KeyError, TypeError or AttributeError for one that this does not know."""
    return {name: Cell.from_json(cell) for name, cell in document["cells"].items()}


def name_of(contender: Contender, metric: str) -> str:
    return f"{contender.key}/{metric}"


def plan(
    contenders: Iterable[Contender], kept: Cells, stamps: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, int]
) -> list[tuple[Contender, str]]:
    """What is left to measure: what can be, and was not by the same code with the same versions and as many samples.

    `stamps` by contender; `wanted` samples by metric. The quick ones come first, so that a run that is broken off has
    something of everybody.
    """
    left = []
    for metric in METRICS:
        for contender in contenders:
            if metric in contender.cannot:
                continue
            cell = kept.get(name_of(contender, metric))
            if cell is None or cell.stamp != stamps[contender.key] or cell.wanted < wanted[metric] or _excused(cell):
                left.append((contender, metric))
    return left


def _excused(cell: Cell) -> bool:
    """It holds a reason only, which may be gone by now."""
    return not cell.samples and not cell.value


def shown(contender: Contender, metric: str, cells: Cells) -> Cell:
    """The cell, or the reason for which there is none."""
    if metric in contender.cannot:
        return Cell(reason=contender.cannot[metric])
    return cells.get(name_of(contender, metric), Cell(reason=NOT_YET))


def time_text(cell: Cell, *, goes_on: bool = False) -> str:
    """Seconds of the recoveries (with `goes_on`: until the survivors go on), how many there were, and why not all."""
    if not cell.samples:
        return cell.reason or NOT_YET
    values = [sample.goes_on_s if goes_on else sample.recovery_s for sample in cell.samples]
    known = tuple(value for value in values if value is not None)
    text = seconds_text(known)
    missing = [sample for sample, value in zip(cell.samples, values, strict=True) if value is None]
    if not missing:
        return f"{text} n={len(known)}"
    why = next((sample.why for sample in missing if sample.why), "it did not recover")
    if not known:
        return f"never: {why}" if len(missing) == 1 else f"never (0 of {len(missing)}): {why}"
    return f"{text} in {len(known)} of {len(values)}; else: {why}"


def seconds_text(values: Sequence[float]) -> str:
    """Median (least-greatest) with two decimals; the range only where there is one."""
    if len(values) < 2:
        return "".join(f"{value:.2f} s" for value in values)
    spread = Spread(values=tuple(values))
    return f"{spread.median:.2f} s ({min(values):.2f}-{max(values):.2f})"


def lost_text(cell: Cell) -> str:
    lost = sorted({sample.lost_steps for sample in cell.samples if sample.lost_steps is not None})
    return "-" if not lost else f"{lost[0]}" if len(lost) == 1 else f"{lost[0]}-{lost[-1]}"


def phase_text(cell: Cell, phase: str) -> str:
    """Median seconds of a phase over the recoveries that tell of it."""
    values = [value for sample in cell.samples if (value := sample.phases.get(phase)) is not None]
    return "-" if not values else f"{Spread(values=tuple(values)).median:.2f}"
