"""Halt: every fault is taken back, none begins, until somebody says why it may go on.

A halt is a row. Whoever wants to inject looks for one first, in the same transaction; trials that run are told of it
(`service.courier`), and what they answer is in their events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from chaos.kinds import FAULT_KINDS
from service import audit, store, webhooks
from service.callers import SERVICE, Caller
from service.control_tables import Halt
from service.problems import Problem
from service.states import FaultState, RunState
from service.tables import FaultRow, Run, Trial


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a halt hits now: faults that last are reverted, those that wait for their trigger are withdrawn."""

    runs: tuple[str, ...]
    reverts: tuple[FaultRow, ...]
    withdraws: tuple[FaultRow, ...]


def reach(session: Session) -> Reach:
    running = list(session.scalars(select(Run.id).where(Run.state == RunState.RUNNING).order_by(Run.seq)))
    # First which trials run, by their index: joined, faults would be read from first to last, of which years are over.
    active = session.scalars(select(Trial.id).where(Trial.state == RunState.RUNNING).order_by(Trial.position)).all()
    waiting = (FaultRow.trial_id.in_(active), FaultRow.state.in_((FaultState.REQUESTED, FaultState.INJECTED)))
    place = {trial: number for number, trial in enumerate(active)}
    found = sorted(
        session.scalars(select(FaultRow).where(*waiting)), key=lambda fault: (place[fault.trial_id], fault.seq)
    )
    return Reach(
        runs=tuple(running),
        reverts=tuple(fault for fault in found if is_active(fault)),
        withdraws=tuple(fault for fault in found if fault.state == FaultState.REQUESTED),
    )


def is_active(fault: FaultRow) -> bool:
    """It was applied, lasts, and was not taken back yet."""
    kind = FAULT_KINDS.get(fault.kind)
    return fault.state == FaultState.INJECTED and kind is not None and kind.lasting


def in_force() -> ColumnElement[bool]:
    """Which halts are, now."""
    return and_(Halt.released_at.is_(None), or_(Halt.until.is_(None), Halt.until > store.now()))


def active(session: Session) -> Halt | None:
    """The halt in force."""
    query = select(Halt).where(in_force()).order_by(Halt.at).limit(1)
    return session.scalars(query).one_or_none()


def refuse(session: Session) -> None:
    """Raises Problem 409 while a halt is in force."""
    if (halt := active(session)) is not None:
        detail = (
            f"halted by {halt.by} ({halt.reason}): no fault may begin. Release it first: "
            f"phoenix halt --release {halt.id} --reason WHY"
        )
        raise Problem(409, "halted", detail, halt=halt.id, reason=halt.reason)


def begin(session: Session, caller: Caller, reason: str, ttl_s: float | None) -> Halt:
    """Put a halt in force, or find the one that is: pressing the button twice is no error."""
    if (present := active(session)) is not None:
        audit.record(session, caller, "halt.again", present.id, reason=reason)
        return present
    hit = reach(session)
    at = store.now()
    halt = Halt(
        id=store.new_id("halt"),
        reason=reason,
        by=caller.name,
        at=at,
        until=None if ttl_s is None else at + timedelta(seconds=ttl_s),
        reverts=len(hit.reverts),
        withdraws=len(hit.withdraws),
    )
    session.add(halt)
    session.flush()
    for fault in hit.reverts:
        ask_to_revert(fault, f"halt: {reason}")
    audit.record(session, caller, "halt", halt.id, reason=reason, detail={"ttl_s": ttl_s, "runs": list(hit.runs)})
    webhooks.tell(session, "halt", {"halt": halt.id, "by": halt.by, "reason": reason, "runs": list(hit.runs)})
    return halt


def ask_to_revert(fault: FaultRow, reason: str) -> None:
    """The courier takes it from here."""
    if fault.revert_requested_at is None:
        fault.revert_requested_at, fault.revert_reason, fault.delivered = store.now(), reason, False


def release(session: Session, halt: Halt, caller: Caller, reason: str) -> None:
    halt.released_at, halt.released_by, halt.release_reason = store.now(), caller.name, reason
    audit.record(session, caller, "halt.release", halt.id, reason=reason)


def expired(session: Session) -> Sequence[Halt]:
    """Those whose time to live is over and that nobody has released."""
    return session.scalars(select(Halt).where(Halt.released_at.is_(None), Halt.until <= store.now())).all()


def release_expired(session: Session) -> None:
    for halt in expired(session):
        release(session, halt, SERVICE, "its time to live is over")
