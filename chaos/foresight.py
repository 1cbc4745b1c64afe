"""What a fault would hit if it fired now, without touching anything. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.errors import TargetGone
from chaos.faults import PlannedFault, RandomRank
from chaos.roster import Roster


@dataclass(frozen=True, kw_only=True)
class Foreseen:
    """The worker that would be hit; None where nobody can be named yet, or nobody would be. `text` says it all."""

    text: str
    worker: str | None = None
    rank: int | None = None
    pid: int | None = None


def foresee(fault: PlannedFault, roster: Roster) -> Foreseen:
    """A random rank is drawn from the id that the fault gets when it is asked for, so it cannot be told before."""
    if isinstance(fault.target, RandomRank):
        return Foreseen(text=f"{fault.kind} would hit a rank that is drawn when it fires{_for_how_long(fault)}")
    try:
        worker = roster.resolve(fault.target)
    except TargetGone as error:
        return Foreseen(text=f"{fault.kind} would miss now: {error}")
    place = "a spare, " if worker.worker in roster.workers else ""
    place = place if worker.rank is None else f"rank {worker.rank}, "
    more = f" and {len(worker.others)} more of node {worker.node}" if worker.others else ""
    text = f"{fault.kind} would hit {worker.worker} ({place}process {worker.pid}){more}{_for_how_long(fault)}"
    return Foreseen(text=text, worker=worker.worker, rank=worker.rank, pid=worker.pid)


def _for_how_long(fault: PlannedFault) -> str:
    return f" for at most {fault.params['ttl_s']} s" if "ttl_s" in fault.params else ""
