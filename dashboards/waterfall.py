"""The waterfall of one recovery, from its JSON to percentages on a lane. Pure.

The pages draw it as one small SVG per lane whose bars are placed in percent: it needs no script, no
inline style (our content security policy forbids both), and its text never scales with the width.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dashboards.api import Json
from dashboards.text import milliseconds

PHASES: Mapping[str, str] = {
    "detect": "from the fault to the first report of it",
    "quiesce": "until the last survivor is out of the broken step",
    "replace": "until the spare has the rank and its model is built",
    "reconstruct": "until the last communicator works again",
    "restore": "until the last rank has its state back",
    "recompute": "until every rank has committed the next new step",
}
MIN_WIDTH = 0.45
LETTER = 4.2
"""Of a lane in percent, what a letter of a label takes on a small screen."""
LAST = 93.0
"""A label from here on ends at its tick."""
"""Percent. A phase of a millisecond beside one of two seconds must stay visible; its number says what it is."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of time on a lane; `x` and `width` in percent of the lane, `start_s` and `end_s` since the fault."""

    label: str
    style: str
    start_s: float
    end_s: float
    x: float
    width: float

    @property
    def title(self) -> str:
        return f"{self.label}: {milliseconds(self.end_s - self.start_s)}, from {milliseconds(self.start_s)}"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An instant on a lane."""

    label: str
    at_s: float
    x: float


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One row: a phase (`value` and `share` say its length) or one party of the recovery."""

    name: str
    hint: str = ""
    value: str = ""
    share: str = ""
    bars: Sequence[Bar] = ()
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Steps per second from one commit to the next; `x`, `width`, `height` in percent of the lane."""

    start_s: float
    end_s: float
    per_s: float
    x: float
    width: float
    height: float
    lost: bool
    """Whether the recovery falls into it, so that what it lacks to the usual rate was lost."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Steps per second on the clock of the lanes above it; `usual` is the median of the steps without the recovery."""

    rates: Sequence[Rate]
    usual: float
    usual_height: float


@dataclass(frozen=True, kw_only=True)
class Tick:
    x: float
    label: str
    anchor: str
    """`start`, `middle` or `end` of the label is at `x`: no label leaves the lane."""
    minor: bool
    """Left out where there is little room."""


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """All lanes over one clock whose zero is the fault. In percent of a lane: where that is and where downtime ends."""

    phases: Sequence[Lane]
    parties: Sequence[Lane] = ()
    ticks: Sequence[Tick] = ()
    throughput: Throughput | None = None
    fault_x: float = 0.0
    ready_x: float | None = None
    origin: str = "since the fault"
    """What the clock counts from."""
    problem: str = ""
    """Why the picture is not whole, in a sentence; empty if it is."""
    summary: str = field(default="")


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """From seconds since the fault to percent of a lane, which shows them from `first` to `last`."""

    first: float
    last: float

    @property
    def scale(self) -> float:
        return 100 / (self.last - self.first) if self.last > self.first else 0.0

    def x(self, seconds: float) -> float:
        return min(100.0, max(0.0, (seconds - self.first) * self.scale))


def build(recovery: Json, origin_s: float | None = None, steps: Sequence[Json] = ()) -> Waterfall:
    """`recovery` may carry `bars` and `instants` (seconds of the run); `origin_s`: when the fault struck, likewise.

    With `steps` (as the API lists them) the clock begins a little before the fault and ends a little after the
    recovery, and the throughput stands below.
    """
    lengths = {name: recovery["phases"].get(name) for name in PHASES}
    raw_bars: list[Json] = recovery.get("bars") or []
    raw_marks: list[Json] = recovery.get("instants") or []
    origin = origin_s if origin_s is not None else min((bar["start_s"] for bar in raw_bars), default=0.0)
    total = sum(value for value in lengths.values() if value is not None)
    span = max([total, *(bar["end_s"] - origin for bar in raw_bars if bar.get("end_s") is not None)], default=0.0)
    commits = sorted(step["at_s"] - origin for step in steps if step.get("at_s") is not None)
    clock = _clock(commits, span)
    downtime = recovery.get("downtime_s")
    return Waterfall(
        phases=_phase_lanes(lengths, total, clock),
        parties=_party_lanes(raw_bars, raw_marks, origin, clock),
        ticks=_ticks([(clock.x(at), milliseconds(at) if at else "0") for at in ticks(clock.last)]),
        throughput=_throughput(commits, span, clock),
        fault_x=clock.x(0.0),
        ready_x=clock.x(downtime) if downtime is not None else None,
        origin="since the fault" if recovery.get("fault") else "since last seen",
        problem=_problem(lengths),
        summary=_summary(lengths, recovery.get("recovery_s")),
    )


def _clock(commits: Sequence[float], span: float) -> _Clock:
    """A few steps around the recovery, as long as they leave it most of the width."""
    if len(commits) < 2 or span <= 0:
        return _Clock(first=0.0, last=span)
    step = statistics.median(later - earlier for earlier, later in itertools.pairwise(commits))
    margin = min(max(0.25 * span, 1.1 * step), 0.4 * span)
    return _Clock(first=max(-margin, min(commits[0], 0.0)), last=min(span + margin, max(commits[-1], span)))


def _throughput(commits: Sequence[float], span: float, clock: _Clock) -> Throughput | None:
    """None where no two commits are known. What was committed before the clock begins counts for the usual rate."""
    gaps = [(start, end) for start, end in itertools.pairwise(commits) if end > start]
    usual = [1 / (end - start) for start, end in gaps if not _lost(start, end, span)]
    drawn = [(start, end) for start, end in gaps if end > clock.first and start < clock.last]
    if not drawn or not usual:
        return None
    typical = statistics.median(usual)
    most = max(typical, *(1 / (end - start) for start, end in drawn))
    rates = [
        Rate(
            start_s=start,
            end_s=end,
            per_s=1 / (end - start),
            x=clock.x(start),
            width=clock.x(end) - clock.x(start),
            height=100 / (end - start) / most,
            lost=_lost(start, end, span),
        )
        for start, end in drawn
    ]
    return Throughput(rates=rates, usual=typical, usual_height=100 * typical / most)


def _lost(start: float, end: float, span: float) -> bool:
    # The recovery ends with a commit, whose instant comes by another road and may differ in the last digit.
    return start < span - 1e-6 and end > 0


def ticks(span: float, most: int = 5) -> list[float]:
    """Round instants (1, 2 or 5 times a power of ten) from 0 to `span`, at most `most` + 1 of them."""
    if span <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= most)
    return [step * index for index in range(int(span / step) + 1)]


def _ticks(labels: Sequence[tuple[float, str]]) -> list[Tick]:
    """Where there is little room, every second, third, ...: as many as do not lie over each other."""
    anchors = ["end" if x > LAST else "start" if not index else "middle" for index, (x, _) in enumerate(labels)]
    begins = {"start": 0.0, "middle": 0.5, "end": 1.0}
    spans = []
    for (x, label), anchor in zip(labels, anchors, strict=True):
        begin = x - LETTER * len(label) * begins[anchor]
        spans.append((begin, begin + LETTER * len(label)))
    every = next(
        (n for n in range(1, len(spans)) if all(a[1] <= b[0] for a, b in itertools.pairwise(spans[::n]))),
        max(1, len(spans)),
    )
    return [
        Tick(x=x, label=label, anchor=anchor, minor=index % every > 0)
        for index, ((x, label), anchor) in enumerate(zip(labels, anchors, strict=True))
    ]


def _phase_lanes(lengths: Mapping[str, float | None], total: float, clock: _Clock) -> list[Lane]:
    lanes, start = [], 0.0
    for name, hint in PHASES.items():
        length = lengths[name]
        bars = []
        if length is not None:
            bars.append(_bar(name, name, start, start + max(0.0, length), clock))
            start += length
        share = f"{length / total:.0%}" if length is not None and total > 0 else ""
        value = milliseconds(length) if length is not None else "not ended"
        lanes.append(Lane(name=name, hint=hint, value=value, share=share, bars=bars))
    return lanes


def _party_lanes(bars: Iterable[Json], marks: Iterable[Json], origin: float, clock: _Clock) -> list[Lane]:
    rows: dict[str, tuple[list[Bar], list[Mark]]] = {}
    for bar in bars:
        label, start = str(bar["label"]), bar["start_s"] - origin
        end = start if bar.get("end_s") is None else bar["end_s"] - origin
        drawn = _bar(label, _style(label), start, end, clock)
        rows.setdefault(str(bar["row"]), ([], []))[0].append(drawn)
    for mark in marks:
        at = mark["at_s"] - origin
        placed = Mark(label=str(mark["label"]), at_s=at, x=clock.x(at))
        rows.setdefault(str(mark.get("row") or "coordinator"), ([], []))[1].append(placed)
    return [Lane(name=name, bars=own[0], marks=own[1]) for name, own in sorted(rows.items(), key=_row_order)]


def _row_order(item: tuple[str, object]) -> tuple[bool, str, int]:
    """The coordinator first, then ranks by number (rank 10 after rank 9)."""
    head, _, tail = item[0].rpartition(" ")
    return (item[0] != "coordinator", head, int(tail) if tail.isdigit() else -1)


def _bar(label: str, style: str, start: float, end: float, clock: _Clock) -> Bar:
    # What took no time at all has no bar; what took little has one that can be seen.
    width = max(MIN_WIDTH, (end - start) * clock.scale) if end > start else 0.0
    x = min(clock.x(start), 100.0 - min(width, 100.0))
    return Bar(label=label, style=style, start_s=start, end_s=end, x=x, width=min(width, 100.0 - x))


def _style(label: str) -> str:
    """A bar takes the colour of the phase that its label names."""
    return next((name for name in PHASES if name in label.lower()), "other")


def _problem(lengths: Mapping[str, float | None]) -> str:
    negative = [name for name, value in lengths.items() if value is not None and value < 0]
    if negative:
        return f"The {negative[0]} phase has a negative length: the clocks of its events do not agree."
    open_phase = next((name for name, value in lengths.items() if value is None), None)
    return f"Not complete: the {open_phase} phase has not ended." if open_phase else ""


def _summary(lengths: Mapping[str, float | None], recovery_s: float | None) -> str:
    parts = ", ".join(f"{name} {milliseconds(value)}" for name, value in lengths.items() if value is not None)
    return f"Recovery time {milliseconds(recovery_s)}: {parts}."
