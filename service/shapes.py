"""The JSON that the REST API takes and gives. Seconds named `*_s` count from the run's first event."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from chaos.verdict import Verdict
from service.states import FaultState, RunState

Json = dict[str, Any]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cluster(Shape):
    nodes: int
    ranks_per_node: int
    spares: int


class RunShape(Shape):
    """One submitted execution of a scenario; `step` is the last one that every rank committed.

    `recoveries` counts those that began so far; a fault on a spare needs none.
    """

    id: str
    scenario: str
    workload: str
    runtime: str
    cluster: Cluster
    seed: int
    steps: int
    state: RunState
    verdict: Verdict | None
    part: str | None
    step: int | None
    error: str | None
    commit: str | None
    dirty: bool | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    trials: list[str]
    recoveries: int


class RunPage(Shape):
    items: list[RunShape]
    next: str | None


class NewRun(Shape):
    """Either the name of a scenario that ships with PHOENIX, or one in full; a few fields may be overridden."""

    scenario_name: str | None = None
    scenario: Json | None = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None


class Cancel(Shape):
    reason: str = Field(default="", max_length=2000)


class RecoveryPhases(Shape):
    """Seconds per phase; null for one that has not ended."""

    detect: float | None
    quiesce: float | None
    replace: float | None
    reconstruct: float | None
    restore: float | None
    recompute: float | None


class Replacement(Shape):
    """The spare that was parked in place of one that was hit, and how long after the fault."""

    worker: str | None
    after_s: float


class Recovery(BaseModel):
    """One recovery, from the fault to the first new step everywhere; the phases tile it exactly.

    A fault on a spare (a target without a rank) needs no recovery: its seconds and phases stay null, and it is over
    when there is a `replacement`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    fault: Json | None
    target: Json | None
    blamed: Json | None
    recovery_s: float | None
    downtime_s: float | None
    phases: RecoveryPhases
    lost_steps: int | None
    generation: int | None
    resume_step: int | None
    replacement: Replacement | None = None
    checks: dict[str, Verdict]


class TrialShape(Shape):
    id: str
    run: str
    state: RunState
    verdict: Verdict | None
    checks: Json
    recoveries: list[Recovery]
    error: str | None
    directory: str
    started_at: datetime | None
    finished_at: datetime | None


class TrialList(Shape):
    items: list[TrialShape]


class Bar(Shape):
    row: str
    label: str
    start_s: float
    end_s: float


class Instant(Shape):
    row: str
    label: str
    at_s: float


class RecoveryTimelineShape(Recovery):
    started_s: float
    ended_s: float | None
    bars: list[Bar]
    instants: list[Instant]


class TimelineShape(Shape):
    trial: str
    run: str
    recoveries: list[RecoveryTimelineShape]


class StepShape(Shape):
    """One step that every rank committed: mean loss of the ranks that reported it, time of the slowest."""

    step: int
    loss: float | None
    duration_s: float | None
    at_s: float
    generation: int


class StepPage(Shape):
    items: list[StepShape]
    next: int | None


class WorkerShape(Shape):
    worker: str
    node: str | None
    pid: int | None
    rank: int | None
    state: Literal["starting", "spare", "active", "failed", "exited"]
    since_s: float


class WorkerList(Shape):
    items: list[WorkerShape]
    generation: int | None


class NewFault(Shape):
    """A fault for a running run. `dry_run`: only say who would be hit."""

    kind: str
    target: Json
    trigger: Json = Field(default_factory=lambda: {"now": True})
    params: Json = Field(default_factory=dict)
    reason: str = Field(default="", max_length=2000)
    dry_run: bool = False


class Injected(Shape):
    worker: str | None
    rank: int | None
    pid: int | None
    fidelity: str | None


class FaultShape(Shape):
    id: str
    run: str
    kind: str
    target: Json
    trigger: Json
    params: Json
    reason: str | None
    state: FaultState
    detail: str | None
    requested_at: datetime
    injected_at_s: float | None
    injected: Injected | None
    recovery: Recovery | None


class FaultList(Shape):
    items: list[FaultShape]


class Would(Shape):
    """Whom the fault would hit if it fired now; `worker` is null where that is drawn only then."""

    text: str
    worker: str | None
    rank: int | None
    pid: int | None


class DryRun(Shape):
    dry_run: Literal[True] = True
    kind: str
    target: Json
    trigger: Json
    params: Json
    would: Would


class FaultKindShape(Shape):
    kind: str
    title: str
    description: str
    lasting: bool
    fidelity: str
    scope: str
    quiet: bool
    params_schema: Json
    targets: list[str]
    triggers: list[str]


class FaultKindList(Shape):
    items: list[FaultKindShape]


class ItemList(Shape):
    items: list[Json]


class EventShape(Shape):
    """One event of a run; `offset` only grows and is what to page and resume by."""

    offset: int
    part: str
    kind: str
    at: int
    at_s: float | None
    host: str
    boot: str
    node: str | None
    worker: str | None
    generation: int | None
    rank: int | None
    step: int | None
    data: Json


class EventPage(Shape):
    items: list[EventShape]
    next: int


class Health(Shape):
    status: Literal["ok"]
