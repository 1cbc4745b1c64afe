"""What the membership is told and what it decides: plain values, so that a simulator can speak them too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from phoenix_core.placement import Offer, RestorePlan
from phoenix_core.world import World
from phoenix_core.xids import Action

# ------------------------------------------------------------------ inputs


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A rank's watermark: the boundary of its live state, and collectives (entered, completed) by stream.

    See watermark.py for what a stream is and how it is named. `doing` says of each stream which collective the rank
    waits in, in words that are equal on all members. `broken`: one has ended with an error here, and the rank waits to
    hear why. `awaits`: the rank whose word, as its holder, it waits for.
    """

    boundary: int = 0
    phase: str = ""
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    doing: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False
    awaits: int | None = None

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Progress:
        streams, doing = data["streams"], data["doing"]
        assert isinstance(streams, Mapping) and isinstance(doing, Mapping)
        counts = {name: (int(entered), int(completed)) for name, (entered, completed) in streams.items()}
        return Progress(
            boundary=int(str(data["boundary"])),
            phase=str(data["phase"]),
            streams=counts,
            doing=doing,
            broken=bool(data["broken"]),
            awaits=None if data["awaits"] is None else int(str(data["awaits"])),
        )


@dataclass(frozen=True, kw_only=True)
class WorkerParked:
    """A worker is warm and waits for a rank; `address` is where it serves state to its peers."""

    worker: str
    address: tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class WorkerExited:
    """`code` as Python reports it: negative is the signal that ended the process."""

    worker: str
    code: int


@dataclass(frozen=True, kw_only=True)
class WorkerSuspected:
    """The node's agent sees a live process that does not run: stopped, or silent for too long."""

    worker: str
    cause: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeLost:
    node: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Progressed:
    worker: str
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Quiesced:
    worker: str
    generation: int
    offer: Offer


@dataclass(frozen=True, kw_only=True)
class Restored:
    worker: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class RestoreFailed:
    """The rank was given a plan that nobody could keep: what it was to be restored from is damaged."""

    kind: ClassVar[str] = "restore_failed"
    phases: ClassVar[tuple[str, ...]] = ("recovering",)
    worker: str
    generation: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class CollectiveBroken(RestoreFailed):
    """A collective of the rank has ended with an error, or its groups could not be formed, and nobody has failed."""

    kind: ClassVar[str] = "collective_broken"
    phases: ClassVar[tuple[str, ...]] = ("running", "recovering")


@dataclass(frozen=True, kw_only=True)
class CheckpointWritten:
    """The worker's part of the checkpoint of `boundary` is on disk."""

    worker: str
    boundary: int


@dataclass(frozen=True, kw_only=True)
class LoopFinished:
    """The rank has executed its last step and waits for the others."""

    worker: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class ScriptFailed:
    """The training script raised; the process will exit, this is why."""

    worker: str
    error: str


@dataclass(frozen=True, kw_only=True)
class DeviceFailed:
    """The training code of the worker met an error of its device; the process ends. See device_errors.py."""

    worker: str
    error: str
    code: int | None
    xids: tuple[int, ...]
    action: Action

    @staticmethod
    def from_json(worker: str, data: Mapping[str, Any]) -> DeviceFailed:
        told = {"error": data["error"], "code": data["code"], "xids": tuple(data["xids"])}
        return DeviceFailed(worker=worker, action=Action(data["action"]), **told)

    of_node: ClassVar[str] = ""

    @property
    def workers(self) -> tuple[str, ...]:
        return (self.worker,)

    def facts(self) -> dict[str, object]:
        return {"code": self.code, "xids": list(self.xids), "action": str(self.action)}


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The agent of `node` has tried to reach the others, as a `Probe` of this number asked; those it did not reach."""

    node: str
    number: int
    unreached: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GpuFailed:
    """The agent of `node` saw an error of a GPU that `workers` (maybe none) use. See xid_reports.py."""

    node: str
    workers: tuple[str, ...]
    error: str
    xids: tuple[int, ...]
    action: Action

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GpuFailed:
        told = {name: tuple(data[name]) for name in ("workers", "xids")}
        return GpuFailed(node=data["node"], error=data["error"], action=Action(data["action"]), **told)

    @property
    def of_node(self) -> str:
        """The node, where the error concerns it even if nobody uses the GPU; else empty."""
        return "" if self.action is Action.RESPAWN else self.node

    def facts(self) -> dict[str, object]:
        return {"code": None, "xids": list(self.xids), "action": str(self.action)}


@dataclass(frozen=True, kw_only=True)
class StopRequested:
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time passed."""


Input = (
    WorkerParked
    | WorkerExited
    | WorkerSuspected
    | NodeLost
    | Progressed
    | Quiesced
    | Restored
    | RestoreFailed
    | CheckpointWritten
    | LoopFinished
    | ScriptFailed
    | DeviceFailed
    | Probed
    | GpuFailed
    | StopRequested
    | Tick
)

# ------------------------------------------------------------------ decisions


@dataclass(frozen=True, kw_only=True)
class Spawn:
    worker: str
    node: str


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Fence a worker: it must not act any more, whatever it believes."""

    worker: str


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A rank failed and no spare is ready: survivors leave their step now and wait for `generation`."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class Announce:
    """A new generation. `joining` are the ranks whose state must come from others; `fresh`: nobody has any.

    `boundary`: where a fresh job begins, above 0 from a checkpoint.
    """

    world: World
    joining: tuple[int, ...]
    fresh: bool
    boundary: int


@dataclass(frozen=True, kw_only=True)
class SendPlan:
    generation: int
    plan: RestorePlan


@dataclass(frozen=True, kw_only=True)
class Resume:
    generation: int
    boundary: int


@dataclass(frozen=True, kw_only=True)
class Release:
    """Every rank has executed its last step: all may leave, spares too."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Every agent of a node in `addresses` shall say which of the others it cannot open a connection to."""

    number: int
    addresses: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class Record:
    """Write an event."""

    kind: str
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class End:
    """The job is over; `outcome` is completed, failed or stopped."""

    outcome: str
    reason: str


Decision = Spawn | Kill | Alert | Announce | SendPlan | Resume | Release | Probe | Record | End
