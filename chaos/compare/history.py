"""One metric of one scenario over time: points, levels, where they changed, and how noisy each machine is. Pure.

The points of a history stand in the order of their codes, not of the clock. A code has its place where it was first
measured, and what is measured of it later (the old side of an A/B, a bisection, a night without a new commit) joins it
there: so a level begins with the code that brought it, however often an older one is measured afterwards. Where
somebody knows the order of commits, one that is measured for the first time after its successor stands before that
(`places`). Points that cannot be compared with each other, of another machine or another scenario, form lines of their
own, and the line that was measured last is the last: a day on a lent machine cuts no other line in two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, pvariance
from typing import Final, NamedTuple

from chaos.compare.changepoints import change_points, spikes
from chaos.compare.ranks import log_deviation, median_interval, trials_needed
from chaos.compare.rows import finite
from chaos.compare.rule import RULE, at_resolution
from chaos.compare.samples import SUCCESS, TOTAL, Code, TrialSample, differences

EFFECTS: Final = (5, 10, 20)
# A number of trials that nobody will run says that the effect cannot be seen on this machine.
MOST_TRIALS: Final = 1000

Place = tuple[str, int]
"""Of a code in a history: a moment, and a number for those of one moment."""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """A remark about a moment (a new kernel, a moved machine), or about a commit, named by as many of its digits."""

    at: str
    text: str
    by: str = ""
    commit: str | None = None


class Measured(NamedTuple):
    """What of a point decides where it stands; `line`: what it can be compared with."""

    code: Code
    line: tuple[str, str]
    first: str
    last: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """All trials of one code in one session."""

    samples: tuple[TrialSample, ...]
    values: tuple[float, ...]

    @property
    def first(self) -> TrialSample:
        return self.samples[0]

    @property
    def comparable(self) -> tuple[str, str]:
        return self.first.fingerprint, self.first.version

    @property
    def measured(self) -> Measured:
        last = max(sample.at for sample in self.samples)
        return Measured(code=self.first.code, line=self.comparable, first=self.first.at, last=last)

    @property
    def level(self) -> float:
        """NaN where there is none: no trial was judged, or most did not recover."""
        middle = median(at_resolution(self.values)) if self.values else math.inf
        return math.nan if math.isinf(middle) else middle


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Points first..last that share a level; no segment reaches over a change of machine or scenario."""

    first: int
    last: int
    median: float


@dataclass(frozen=True, kw_only=True)
class History:
    scenario: str
    fault: str
    metric: str
    points: tuple[Point, ...]
    segments: tuple[Segment, ...]
    spikes: frozenset[int]
    breaks: tuple[int, ...]
    changes: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def to_json(
        self, annotations: Sequence[Annotation] = (), subjects: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        """`subjects`: the first line of the message of each commit, where it is known."""
        known = subjects or {}
        return {
            "scenario": self.scenario,
            "fault": self.fault,
            "metric": self.metric,
            "points": [self._point(index, point, known) for index, point in enumerate(self.points)],
            "segments": [{"first": s.first, "last": s.last, "median": s.median} for s in self.segments],
            "change_points": [self._change(index) for index in self.changes],
            "breaks": [self._break(index) for index in self.breaks],
            "annotations": [
                {
                    "at": remark.at,
                    "text": remark.text,
                    "by": remark.by,
                    "commit": remark.commit,
                    "index": self._index_of(remark),
                }
                for remark in annotations
            ],
            "noise": noise(self),
            "notes": list(self.notes),
        }

    def _point(self, index: int, point: Point, subjects: Mapping[str, str]) -> dict[str, object]:
        first, interval = point.first, median_interval(point.values)
        judged = sum(sample.judged for sample in point.samples)
        succeeded = sum(sample.succeeded for sample in point.samples)
        middle = median(point.values) if point.values else None
        if self.metric == SUCCESS:
            middle = succeeded / judged if judged else None
        return {
            "index": index,
            "session": first.session,
            "code": first.code.name,
            "short": first.code.short,
            "subject": subjects.get(first.code.commit),
            "dirty": bool(first.code.diff),
            "at": first.at,
            "fingerprint": first.fingerprint,
            "scenario_version": first.version,
            "n": judged if self.metric == SUCCESS else len(point.values),
            "median": finite(middle),
            "low": finite(interval[0]) if interval else None,
            "high": finite(interval[1]) if interval else None,
            "values": [finite(value) for value in point.values],
            "not_recovered": sum(math.isinf(value) for value in point.values),
            "succeeded": succeeded,
            "judged": judged,
            "trials": [sample.trial for sample in sorted(point.samples, key=self._untimed)],
            "segment": next((n for n, s in enumerate(self.segments) if s.first <= index <= s.last), None),
            "spike": index in self.spikes,
        }

    def _untimed(self, sample: TrialSample) -> bool:
        """Trials of which there is no value come last, so that the first ones are those of the values."""
        return self.metric not in sample.times.get(self.fault, {})

    def _change(self, index: int) -> dict[str, object]:
        before = next(segment for segment in self.segments if segment.last == index - 1)
        after = next(segment for segment in self.segments if segment.first == index)
        return {
            "index": index,
            "before": before.median,
            "after": after.median,
            "ratio": after.median / before.median,
            "code": self.points[index].first.code.name,
            "previous": self.points[index - 1].first.code.name,
        }

    def _break(self, index: int) -> dict[str, object]:
        before, after = self.points[index - 1].first, self.points[index].first
        if before.fingerprint != after.fingerprint:
            return {"index": index, "kind": "machine", "fields": differences(before.machine, after.machine)}
        return {"index": index, "kind": "scenario", "fields": differences(before.shape, after.shape)}

    def _index_of(self, remark: Annotation) -> int | None:
        """The first point of its commit; of a moment, the point that comes after all that were measured before it."""
        if remark.commit is not None:
            own = (i for i, point in enumerate(self.points) if point.first.code.commit.startswith(remark.commit))
            return next(own, None)
        after = 1 + max((i for i, point in enumerate(self.points) if point.first.at < remark.at), default=-1)
        return after if after < len(self.points) else None


def history(
    samples: Sequence[TrialSample],
    scenario: str,
    *,
    fault: str = "",
    metric: str = TOTAL,
    newest: int | None = None,
    places: Mapping[Code, Place] | None = None,
) -> History:
    """`samples` in any order. Where no fault is named it is the first of those that the scenario had last; sessions
    that were without it are left out. `newest`: so many points. `places`: of codes about which more is known than these
    samples tell, because not all of them are here, or because somebody knows what came before what.
    """
    own = sorted((s for s in samples if s.scenario == scenario), key=lambda sample: (sample.at, sample.trial))
    fault = fault or next(iter(faults_of(own)), "")
    own = [sample for sample in own if not fault or fault in sample.faults]
    timed = _points(own, fault, metric)
    points = [timed[index] for index in in_order([point.measured for point in timed], places or {})][-(newest or 0) :]
    breaks = [i for i in range(1, len(points)) if points[i].comparable != points[i - 1].comparable]
    segments: list[Segment] = []
    changes: list[int] = []
    odd: set[int] = set()
    notes: list[str] = []
    edges = [0, *breaks, len(points)] if metric != SUCCESS and points else []
    for first, last in pairwise(edges):
        known = [index for index in range(first, last) if not math.isnan(points[index].level)]
        levels = [points[index].level for index in known]
        odd |= {index for index, spike in zip(known, spikes(levels), strict=True) if spike}
        try:
            found = [known[index] for index in change_points(levels)]
        except ImportError:
            found, notes = [], ["change points are not looked for: ruptures is not installed (pip install ruptures)"]
        changes += found
        segments += _segments(points, [first, *found, last])
    return History(
        scenario=scenario,
        fault=fault,
        metric=metric,
        points=tuple(points),
        segments=tuple(segments),
        spikes=frozenset(odd),
        breaks=tuple(breaks),
        changes=tuple(changes),
        notes=tuple(notes),
    )


def in_order(points: Sequence[Measured], known: Mapping[Code, Place]) -> list[int]:
    """Their numbers, in the order of a history; `known`: places of codes, where these points do not tell them."""
    last: dict[tuple[str, str], str] = {}
    places = dict(known)
    for point in sorted(points, key=lambda point: point.first):
        last[point.line] = max(last.get(point.line, ""), point.last)
        places.setdefault(point.code, (point.first, 0))

    def place(index: int) -> tuple[str, tuple[str, str], Place, str]:
        point = points[index]
        return last[point.line], point.line, places[point.code], point.first

    return sorted(range(len(points)), key=place)


def noise(of: History) -> list[dict[str, object]]:
    """How much the same code differs from itself on each machine, and the trials a side that see an effect through it.

    `trial_cv` is within a code and session; `session_cv` is what sessions of one level differ by beyond that.
    """
    machines: dict[str, list[Point]] = {}
    for point in of.points:
        machines.setdefault(point.first.fingerprint, []).append(point)
    return [_noise_of(of, fingerprint, points) for fingerprint, points in machines.items()]


def faults_of(samples: Sequence[TrialSample]) -> list[str]:
    """`samples` oldest first; those of the newest come first."""
    return list(dict.fromkeys(fault for sample in reversed(samples) for fault in sample.times))


def baseline(samples: Sequence[TrialSample], commits: Collection[str]) -> tuple[TrialSample, ...]:
    """Trials of these commits since each scenario's level last changed: what a later commit may be held against."""
    own = [sample for sample in samples if sample.code.commit in commits and not sample.code.diff]
    kept: list[TrialSample] = []
    for scenario in sorted({sample.scenario for sample in own}):
        seen = history(own, scenario)
        first = max([0, *seen.changes, *seen.breaks])
        kept += [sample for point in seen.points[first:] for sample in point.samples]
    return tuple(kept)


def _points(samples: Sequence[TrialSample], fault: str, metric: str) -> list[Point]:
    grouped: dict[tuple[object, ...], list[TrialSample]] = {}
    for sample in samples:
        key = (sample.session, sample.code, sample.fingerprint, sample.version)
        grouped.setdefault(key, []).append(sample)
    points = []
    for own in grouped.values():
        times = [sample.times.get(fault, {}) for sample in own]
        values = tuple(time[metric] for time in times if metric in time)
        points.append(Point(samples=tuple(own), values=values))
    return points


def _segments(points: Sequence[Point], edges: Sequence[int]) -> list[Segment]:
    found = []
    for first, last in pairwise(edges):
        levels = [point.level for point in points[first:last] if not math.isnan(point.level)]
        if levels:
            found.append(Segment(first=first, last=last - 1, median=median(levels)))
    return found


def _noise_of(of: History, fingerprint: str, points: Sequence[Point]) -> dict[str, object]:
    trial = log_deviation(*(at_resolution(point.values) for point in points))
    needed = None if trial is None else [trials_needed(trial, effect / 100) for effect in EFFECTS]
    return {
        "fingerprint": fingerprint,
        "machine": dict(points[-1].first.machine),
        "trial_cv": trial,
        "session_cv": _between_sessions(of, fingerprint, trial),
        **{
            name: value
            for name, value in _extent([sample for point in points for sample in point.samples]).items()
            if name != "last_at"
        },
        "needed": {
            str(effect): None if needed is None or needed[place] > MOST_TRIALS else needed[place]
            for place, effect in enumerate(EFFECTS)
        },
        "delta": RULE.delta,
    }


def _between_sessions(of: History, fingerprint: str, trial: float | None) -> float | None:
    """The variance of levels within segments, less what trials alone make of it (a median's is pi/2 of a mean's)."""
    variances, weights = [], []
    for segment in of.segments:
        points = [
            point
            for index, point in enumerate(of.points[segment.first : segment.last + 1], segment.first)
            if point.first.fingerprint == fingerprint and not math.isnan(point.level) and index not in of.spikes
        ]
        if len(points) >= 3:
            count = len(points)
            within = math.fsum(math.pi / 2 * (trial or 0.0) ** 2 / len(point.values) for point in points) / count
            seen = pvariance([math.log(point.level) for point in points]) * count / (count - 1)
            variances.append(max(0.0, seen - within))
            weights.append(count - 1)
    if not weights:
        return None
    return math.sqrt(math.fsum(v * w for v, w in zip(variances, weights, strict=True)) / sum(weights))


def _extent(samples: Sequence[TrialSample]) -> dict[str, object]:
    return {
        "trials": len(samples),
        "sessions": len({sample.session for sample in samples}),
        "last_at": max(sample.at for sample in samples),
    }
