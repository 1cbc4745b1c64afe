"""The JSON of comparisons and histories; `chaos.compare` computes it, `phoenix compare --json` prints the same."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from chaos.compare.rule import Outcome
from service.shapes import Json, Shape


class SideShape(Shape):
    """One code and how much of it was measured; `name` is what was asked for."""

    name: str
    commit: str | None
    short: str
    dirty: bool
    trials: int
    sessions: int
    first_at: datetime | None
    last_at: datetime | None


class GroupShape(Shape):
    """Seconds. A null among `values` did not recover; the interval of the median needs 6 values."""

    n: int
    median: float | None
    low: float | None
    high: float | None
    values: list[float | None]
    not_recovered: int
    succeeded: int
    trials: int
    unjudged: int
    sessions: int


class RowShape(Shape):
    """One metric of one fault: `ratio` is head over base (Hodges-Lehmann) with its 95 % interval.

    `gates`: it decides the verdict of the whole; others explain. `needs`: values per side that would decide.
    """

    scenario: str
    fault: str
    metric: str
    gates: bool
    verdict: Outcome
    screened: bool
    confirmed: bool | None
    reason: str
    fields: list[str]
    unit: Literal["trial", "session"]
    base: GroupShape
    head: GroupShape
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    needs: int | None
    reproduce: str


class ComparisonShape(Shape):
    base: SideShape
    head: SideShape
    verdict: Outcome
    exit_code: Literal[0, 1, 3]
    counts: dict[str, int]
    notes: list[str]
    rows: list[RowShape]
    command: str


class PointShape(Shape):
    """All trials of one code in one session; the index is its place on the axis. `values` are those of the first of
    `trials`, in their order; trials that have none (not judged, say) follow."""

    index: int
    session: str
    code: str
    short: str
    subject: str | None
    dirty: bool
    at: datetime
    fingerprint: str
    scenario_version: str
    n: int
    median: float | None
    low: float | None
    high: float | None
    values: list[float | None]
    not_recovered: int
    succeeded: int
    judged: int
    trials: list[str]
    segment: int | None
    spike: bool


class SegmentShape(Shape):
    first: int
    last: int
    median: float


class ChangeShape(Shape):
    """A new level begins at this index and lasted for at least three points."""

    index: int
    before: float
    after: float
    ratio: float
    code: str
    previous: str


class BreakShape(Shape):
    index: int
    kind: Literal["machine", "scenario"]
    fields: list[str]


class RemarkShape(Shape):
    """`index`: of the first point of its commit, or of the first after its moment; null where there is none here."""

    at: datetime
    text: str
    by: str
    commit: str | None
    index: int | None


class NoiseShape(Shape):
    """How much a code differs from itself on one machine; `needed`: trials per side by size of effect in percent."""

    fingerprint: str
    machine: Json
    trial_cv: float | None
    session_cv: float | None
    trials: int
    sessions: int
    needed: dict[str, int | None]
    delta: float


class HistoryShape(Shape):
    scenario: str
    fault: str
    metric: str
    points: list[PointShape]
    segments: list[SegmentShape]
    change_points: list[ChangeShape]
    breaks: list[BreakShape]
    annotations: list[RemarkShape]
    noise: list[NoiseShape]
    notes: list[str]


class SeriesItem(Shape):
    """`current`: the scenario has this fault still. What was measured is of the points that had it."""

    scenario: str
    fault: str
    current: bool
    metrics: list[str]
    trials: int
    sessions: int
    last_at: datetime
    fingerprints: list[str]


class CodeItem(Shape):
    name: str
    short: str
    subject: str | None
    dirty: bool
    trials: int
    last_at: datetime


class MachineItem(Shape):
    fingerprint: str
    machine: Json
    trials: int
    sessions: int


class SeriesShape(Shape):
    """`branches`: with commits of which there are trials, the newest first; none where no checkout knows them.
    `seeded`: some of it is made up (`phoenix demo --seed-data`).
    """

    items: list[SeriesItem]
    codes: list[CodeItem]
    branches: list[str]
    machines: list[MachineItem]
    seeded: bool
