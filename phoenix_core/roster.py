"""The shape of a job and what is known of each of its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from phoenix_core.protocol import Kill, Progress, Record
from phoenix_core.settings import Detection


class State(StrEnum):
    STARTING = "starting"
    PARKED = "parked"
    ACTIVE = "active"
    FAILED = "failed"
    GONE = "gone"


class Phase(StrEnum):
    FORMING = "forming"
    BUILDING = "building"
    RUNNING = "running"
    RECOVERING = "recovering"
    LEAVING = "leaving"
    ENDED = "ended"


@dataclass
class Member:
    worker: str
    node: str
    state: State = State.STARTING
    address: tuple[str, int] | None = None
    progress: Progress = field(default_factory=Progress)
    changed_at: float = 0.0
    error: str = ""

    @property
    def alive(self) -> bool:
        return self.state in (State.STARTING, State.PARKED, State.ACTIVE)

    def end(self, code: int) -> str:
        """How its process ended: what the script said of it, else by the exit `code`, below 0 that of a signal."""
        return self.error or (f"signal {-code}" if code < 0 else f"exit code {code}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """The shape of a job. `rank_nodes[r]` is the node of rank r at the start; `spare_nodes` one entry a spare.

    `begins_at`: the boundary of the checkpoint that it begins from, 0 without one.
    """

    rank_nodes: tuple[str, ...]
    spare_nodes: tuple[str, ...] = ()
    max_restarts: int = 3
    begins_at: int = 0
    detection: Detection = field(default_factory=Detection)


def parked(member: Member) -> Record:
    return Record(kind="spare_parked", fields={"worker": member.worker, "node": member.node})


def taken_out(member: Member, rank: int | None, generation: int, why: Mapping[str, object]) -> list[Record | Kill]:
    """`member` has failed, by which `generation` ends or goes on; `why` has at least a cause and a detail."""
    member.state = State.FAILED
    fields = {"worker": member.worker, "node": member.node, "rank": rank, **why, "generation": generation}
    return [Record(kind="failure_detected", fields=fields), Kill(worker=member.worker)]


def late_starters(members: Iterable[Member], now: float, limit_s: float) -> list[str]:
    """Workers that were started more than `limit_s` ago and have not parked."""
    starting = [member for member in members if member.state is State.STARTING]
    for member in starting:
        member.changed_at = member.changed_at or now  # the first look at it: who started it knew no time
    return [member.worker for member in starting if now - member.changed_at > limit_s]
