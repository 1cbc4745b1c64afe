"""Reads the directories of active trials into the database, each line exactly once.

How far a file was read is committed together with the rows that came from it: whatever happens to
this process, the next one goes on where the rows end, and nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from chaos.reading import Event, EventTail
from chaos.recoveries import recovery_records
from service import upsert
from service.database import Database
from service.fitting import fit_number, fit_optional, fit_text
from service.hub import Hub
from service.recoveries import TRAINING, relevant_events
from service.states import FaultState
from service.tables import EventRow, FaultRow, ReadOffset, RecoveryRow, Run, StepSample, Trial

PARTS = ("run", "twin")
MOST_DETAIL = 10_000


class TrialReader:
    """Reads one trial's new events. One at a time per trial; a failed `read` may be called again."""

    def __init__(self, database: Database, hub: Hub, run: str, trial: str, directory: Path) -> None:
        self._database = database
        self._hub = hub
        self._run = run
        self._trial = trial
        self._directory = directory
        self._tails: dict[str, EventTail] | None = None
        self._stored: dict[str, int] = {}
        self._recovering = True

    def read(self) -> int:
        """Take over what was appended since the last call; returns how many events that were."""
        tails = self._tails
        if tails is None:
            with self._database.read() as session:
                tails = self._open(session)
        self._tails = None  # Until the commit below the offsets in memory are ahead of the database.
        batches = _news(tails)
        count = sum(len(batch) for batch in batches.values())
        if count:
            with self._database.write() as session:
                offsets = self._store(session, batches, tails)
            self._stored = offsets
            self._hub.notify(self._run)
        self._tails = tails
        return count

    def read_into(self, session: Session) -> None:
        """Take over all of a trial that is over, in the transaction of whatever else makes it whole."""
        tails = self._open(session)
        batches = _news(tails)
        if any(batches.values()):
            self._store(session, batches, tails)

    def _open(self, session: Session) -> dict[str, EventTail]:
        query = select(ReadOffset.path, ReadOffset.offset).where(ReadOffset.trial_id == self._trial)
        self._stored = stored = {row.path: row.offset for row in session.execute(query)}
        return {
            part: EventTail(
                self._directory / part / "events",
                {Path(path).name: at for path, at in stored.items() if path.startswith(f"{part}/")},
            )
            for part in PARTS
        }

    def _store(self, session: Session, batches: dict[str, list[Event]], tails: dict[str, EventTail]) -> dict[str, int]:
        """The rows of these events and, in the same transaction, how far the files are read by now."""
        rows = [self._row(part, event) for part, batch in batches.items() for event in batch]
        session.execute(insert(EventRow), rows)
        disturbed = batches["run"]
        run = session.scalars(select(Run).where(Run.id == self._run)).one()
        trial = session.get_one(Trial, self._trial)
        if disturbed:
            first = min(event.at for event in disturbed)
            trial.first_at = first if trial.first_at is None else min(trial.first_at, first)
        self._store_samples(session, disturbed)
        for event in disturbed:
            self._store_control(session, run, event)
        if any(event.kind == "step_committed" for event in disturbed):
            run.step = self._committed_step(session, run)
        session.flush()
        self._store_recoveries(session, disturbed)
        offsets = {f"{part}/events/{name}": at for part, tail in tails.items() for name, at in tail.offsets.items()}
        moved = [(path, at) for path, at in offsets.items() if self._stored.get(path) != at]
        upsert.execute(session, ReadOffset, [{"trial_id": self._trial, "path": p, "offset": at} for p, at in moved])
        return offsets

    def _row(self, part: str, event: Event) -> dict[str, Any]:
        return {
            "run_id": self._run,
            "trial_id": self._trial,
            "part": part,
            "kind": event.kind,
            "at": event.at,
            "host": event.host,
            "boot": event.boot,
            "node": event.node,
            "worker": event.worker,
            "generation": event.generation,
            "rank": event.rank,
            "step": event.step,
            "data": dict(event.data),
        }

    def _store_samples(self, session: Session, events: Iterable[Event]) -> None:
        samples: dict[tuple[int, int], dict[str, Any]] = {}
        for event in events:
            if event.kind != "step_committed" or event.step is None or event.rank is None:
                continue
            loss, duration = event.data.get("loss"), event.data.get("duration_ns")
            samples[event.step, event.rank] = {
                "trial_id": self._trial,
                "step": event.step,
                "rank": event.rank,
                "generation": event.generation or 0,
                "at": event.at,
                "duration_ns": fit_number(duration, 64),
                "loss": float(loss) if isinstance(loss, int | float) else None,
            }
        upsert.execute(session, StepSample, list(samples.values()))

    def _store_control(self, session: Session, run: Run, event: Event) -> None:
        fault = str(event.data.get("fault", ""))
        changes: dict[str, Any] = {}
        match event.kind:
            case "trial_phase":
                run.part = fit_text(event.data.get("part"), 16)
            case "generation_resumed" if event.step:
                # Whatever lies before the step to resume at is committed, also for a rank that died before saying so.
                run.step = max(run.step or 0, event.step - 1)
            case "fault_injected":
                pid, fidelity = event.data.get("pid"), event.data.get("fidelity")
                changes = {
                    "state": FaultState.INJECTED,
                    "injected_at": event.at,
                    "worker": event.worker,
                    "rank": event.rank,
                    "pid": fit_number(pid),
                    "fidelity": fit_optional(fidelity, 16),
                }
            case "fault_missed":
                changes = {"state": FaultState.MISSED, "detail": fit_optional(event.data.get("reason"), MOST_DETAIL)}
            case "fault_reverted":
                changes = {"state": FaultState.REVERTED, "reverted_at": event.at}
        if changes:
            session.execute(
                update(FaultRow).where(FaultRow.trial_id == self._trial, FaultRow.id == fault).values(**changes)
            )

    def _committed_step(self, session: Session, run: Run) -> int | None:
        """The greatest step that every rank has committed; it never falls."""
        complete = (
            select(StepSample.step)
            .where(StepSample.trial_id == self._trial, StepSample.step >= (run.step or 0))
            .group_by(StepSample.step)
            .having(func.count() == run.world_size)
            .subquery()
        )
        newest = session.scalar(select(func.max(complete.c.step)))
        return run.step if newest is None else newest

    def _store_recoveries(self, session: Session, events: Sequence[Event]) -> None:
        """Compute anew only while a recovery is open: training events alone change none that is closed."""
        if not self._recovering and all(event.kind in TRAINING for event in events):
            return
        documents = [record.to_json() for record in recovery_records(relevant_events(session, self._trial))]
        replace_recoveries(session, self._trial, documents)
        # A fault without a generation waits for its detection, whose events are not training events.
        self._recovering = any(
            document["recovery_s"] is None and document["generation"] is not None for document in documents
        )


def replace_recoveries(session: Session, trial: str, documents: Sequence[Mapping[str, object]]) -> None:
    """These are all recoveries of the trial that are known now."""
    session.execute(delete(RecoveryRow).where(RecoveryRow.trial_id == trial))
    rows = [
        {
            "trial_id": trial,
            "number": number,
            "generation": document["generation"],
            "fault_id": _fault_id(document),
            "document": dict(document),
        }
        for number, document in enumerate(documents)
    ]
    if rows:
        session.execute(insert(RecoveryRow), rows)


def _news(tails: Mapping[str, EventTail]) -> dict[str, list[Event]]:
    return {part: [_fitted(event) for event in tail.read()] for part, tail in tails.items()}


def _fitted(event: Event) -> Event:
    """With values that every database takes, whatever process wrote it."""
    return replace(
        event,
        kind=fit_text(event.kind, 40),
        at=fit_number(event.at, 64) or 0,
        host=fit_text(event.host, 100),
        boot=fit_text(event.boot, 64),
        node=fit_optional(event.node, 40),
        worker=fit_optional(event.worker, 40),
        generation=fit_number(event.generation),
        rank=fit_number(event.rank),
        step=fit_number(event.step),
        data=event.data if isinstance(event.data, Mapping) else {},
    )


def _fault_id(document: Mapping[str, object]) -> str | None:
    fault = document.get("fault")
    return str(fault["id"]) if isinstance(fault, Mapping) and fault.get("id") else None
