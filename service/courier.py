"""Takes what was asked of a run to the process of its trial: faults, reverts, halts, a cancel.

Each is a line of the trial's requests file. The row is written before the line and marked after it; a request whose
mark is missing may be in the file already, which is why the file is looked at first.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from chaos.record import TrialDirectory
from service import halts, store
from service.control_tables import Halt
from service.files import last_lines
from service.states import RunState
from service.tables import FaultRow, Trial


def waiting(session: Session) -> set[str]:
    """Runs that were asked for something of which their trials may not have heard yet."""
    halt = halts.active(session)
    other = Trial.halt_id.is_not(None) if halt is None else Trial.halt_id.is_distinct_from(halt.id)
    told_otherwise = set(session.scalars(select(Trial.run_id).where(Trial.state == RunState.RUNNING, other)))
    return store.runs_with_requests(session) | told_otherwise


def hand_over(session: Session, trial: Trial, directory: TrialDirectory) -> None:
    """All but a cancel, which may have to be said more than once. `trial` belongs to `session`."""
    written = last_lines(directory.requests_file)
    _tell_of_halt(session, trial, directory)
    for fault in store.undelivered(session, trial.id):
        if fault.live and not _stands(written, "fault", fault.id):
            directory.request_fault(to_request(fault))
        if fault.revert_requested_at is not None and not _stands(written, "revert", fault.id):
            directory.request_revert(fault.id, fault.revert_reason or "")
        fault.delivered = True


def _tell_of_halt(session: Session, trial: Trial, directory: TrialDirectory) -> None:
    """A halt and its release may be said twice, and mean the same as once."""
    halt = halts.active(session)
    told = trial.halt_id
    if told is not None and (halt is None or halt.id != told):
        over = session.get(Halt, told)
        directory.request_release(told, (over.release_reason if over else None) or "released")
        trial.halt_id = None
    if halt is not None and halt.id != told:
        directory.request_halt(halt.id, halt.reason)
        trial.halt_id = halt.id


def to_request(fault: FaultRow) -> Mapping[str, object]:
    """The line by which a running trial is asked for this fault."""
    return {
        "fault": fault.id,
        "kind": fault.kind,
        "target": fault.target,
        "trigger": fault.trigger,
        "params": fault.params,
        "reason": fault.reason or "",
    }


def _stands(lines: list[str], word: str, fault: str) -> bool:
    return any(f'"{word}":"{fault}"' in line for line in lines)
