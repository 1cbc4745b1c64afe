"""The JSON that the REST API takes and gives. Seconds named `*_s` count from the run's first event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from chaos.verdict import Verdict
from service.patterns import REVISION_NAME
from service.states import FaultState, RunState

Json = dict[str, Any]


def to_utc(value: datetime) -> datetime:
    """Days at either end of the calendar are kept free: on some clock they are in a year that there is not. Raises
    ValueError for these."""
    try:
        moment = value.astimezone(UTC)
        _ = moment - timedelta(days=2), moment + timedelta(days=2)
        return moment
    except OverflowError:
        raise ValueError("lies before the first or after the last year that there is") from None


# A moment with its offset, as it is stored: in UTC.
Moment = Annotated[AwareDatetime, AfterValidator(to_utc)]
# Why somebody does something; kept with it and in the audit log.
Reason = Annotated[str, Field(max_length=2000)]


def text_of(most: int) -> StringConstraints:
    """Of a name or reason that people read: blanks around it do not count, and there is something else."""
    return StringConstraints(strip_whitespace=True, min_length=1, max_length=most)


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cluster(Shape):
    nodes: int
    ranks_per_node: int
    spares: int


class Progress(Shape):
    """Trials of a run: how many have begun and ended, of how many."""

    done: int
    total: int


class RunShape(Shape):
    """One submitted execution of a scenario or a suite; `step` is the last one that every rank committed.

    Of a run with several trials what describes a scenario is that of the trial that runs now, else of the last one; the
    verdict is the worst. `recoveries` counts those that began so far; a fault on a spare needs none. `seeded`: made up,
    to look at. `archived`: its events and samples have been removed, as old as they were.
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
    reason: str | None
    requested_by: str | None
    suite: str | None
    schedule: str | None
    service: str | None
    progress: Progress
    revision: str | None
    seeded: bool
    archived: bool


class RunPage(Shape):
    items: list[RunShape]
    next: str | None


class NewRun(Shape):
    """Either the name of a scenario or of a suite that ships with PHOENIX, or a scenario in full.

    `revision`: of the repository that the service was started with (`HEAD`: what was pushed last), else its own code.
    `trials`: how often a scenario runs, each time with a seed of its own (`seed`, the next one, and so on); a suite
    says itself what it runs.
    """

    scenario_name: str | None = None
    scenario: Json | None = None
    suite: str | None = None
    revision: Annotated[str | None, Field(pattern=REVISION_NAME)] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    trials: Annotated[int, Field(ge=1, le=200)] = 1
    reason: Reason = ""


class Cancel(Shape):
    reason: Reason = ""


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


class TrialSummary(Shape):
    """`directory` is on the machine of the service that ran it; null before it began."""

    id: str
    run: str
    number: int
    scenario: str
    runtime: str
    seed: int
    steps: int
    commit: str | None
    dirty: bool | None
    service: str | None
    state: RunState
    verdict: Verdict | None
    checks: Json
    error: str | None
    directory: str | None
    started_at: datetime | None
    finished_at: datetime | None


class TrialShape(TrialSummary):
    recoveries: list[Recovery]


class TrialList(Shape):
    items: list[TrialShape]


class TrialPage(Shape):
    items: list[TrialSummary]
    next: str | None


class LogLines(Shape):
    """The end of what the trial's process printed."""

    trial: str
    lines: list[str]


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
    reason: Reason = ""
    dry_run: bool = False


class Injected(Shape):
    worker: str | None
    rank: int | None
    pid: int | None
    fidelity: str | None


class FaultShape(Shape):
    id: str
    run: str
    trial: str
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
    ttl_s: float | None
    expires_at_s: float | None
    revert_requested: bool
    reverted_at_s: float | None
    requested_by: str | None
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
    ttl_s: float | None
    would: Would


class Why(Shape):
    """Why a fault is taken back, or a halt released."""

    reason: Reason = ""


class FaultKindShape(Shape):
    """`supported`: this host can inject it; else the reason says why not, and what would help."""

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
    supported: bool
    unsupported_reason: str | None


class FaultKindList(Shape):
    items: list[FaultKindShape]


class SuiteShape(Shape):
    """A list of scenarios that run as one; `trials`: how many that are, with their seeds and repetitions."""

    name: str
    title: str
    description: str
    scenarios: list[str]
    trials: int


class SuiteList(Shape):
    items: list[SuiteShape]


class ItemList(Shape):
    items: list[Json]


class EventShape(Shape):
    """One event of a run; `offset` only grows and is what to page and resume by."""

    offset: int
    trial: str
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
