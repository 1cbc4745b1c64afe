"""Makes rows of trial directories, whoever made them, and leaves alone what the database knows already."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from chaos.errors import ChaosError
from chaos.faults import PlannedFault
from chaos.record import Result, Spec, TrialDirectory
from chaos.requests import CancelRequest, FaultRequest, RequestTail
from chaos.scenario import FAULT_ID_PATTERN
from service import decisions, endings, history, store
from service.archive import ArchiveError, unpack
from service.database import Database
from service.decisions import Decisions
from service.fitting import fit_optional, fit_text
from service.hub import Hub
from service.ingest import MOST_DETAIL, TrialReader, replace_recoveries
from service.runfile import RunFile
from service.shapes import to_utc
from service.states import RunState, state_of_ended_trial
from service.tables import Run, Trial


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of one directory. `trial` is its row; `reason` says why there is no new one, `broken` that there
    should be one."""

    directory: Path
    trial: str | None
    reason: str = ""
    broken: bool = False


def import_all(database: Database, paths: Iterable[Path], trials: Path) -> Iterator[Imported]:
    """Of trial directories, directories of such, and exported files (unpacked into `trials`). Raises ArchiveError."""
    for path in paths:
        if path.is_file():
            unpacked = unpack(path, trials)
            for directory, reason in unpacked.broken.items():
                yield Imported(directory=directory, trial=None, reason=reason, broken=True)
            found = unpacked.trials
        elif not (found := _directories(path)):
            raise ArchiveError(f"{path} is no trial directory and holds none (there is no spec.json)")
        for directory in found:
            yield import_one(database, directory)


def import_decisions(database: Database, found: Iterable[Decisions]) -> int:
    """What people decided and noted; returns how many rows are new."""
    with database.write() as session:
        return sum(decisions.take_in(session, one) for one in found)


def import_one(database: Database, directory: Path) -> Imported:
    """Rows of one trial: it, its run, its events, samples and recoveries; all of them, or none."""
    source = TrialDirectory(directory)
    try:
        spec, result, alive = source.read_spec(), source.read_result(), source.is_alive()
        begun = _moment(spec.created_at, source.spec_file)
        ended = None if result is None else _moment(result.finished_at, source.result_file)
        told = RunFile.read(directory) or _alone(spec, begun, directory)
    except (ChaosError, ValueError) as error:
        return Imported(directory=directory, trial=None, reason=str(error), broken=True)
    if alive:
        return Imported(directory=directory, trial=None, reason="it is running; import it when it has ended")
    name = f"{told.run}-{told.number}"
    with database.write() as session:
        if session.get(Trial, name) is not None:
            return Imported(directory=directory, trial=None, reason=f"{name} is there already")
        run = store.find_run(session, told.run) or _add_run(session, told, spec, begun)
        trial = _add_trial(session, run, told, spec, begun, directory)
        requests = _requests(directory)
        for fault in _live(requests, {fault.id for fault in spec.scenario.planned}):
            store.add_fault(session, trial, fault, live=True).delivered = True
        if told.number == max(other.number for other in store.trials_of(session, run.id)):
            run.step = run.part = None
            for column, value in store.described(spec.scenario).items():
                setattr(run, column, value)
        TrialReader(database, Hub(), run.id, trial.id, directory).read_into(session)
        cancelled = any(isinstance(request, CancelRequest) for request in requests)
        _conclude(session, run, trial, result, ended, cancelled=cancelled)
    return Imported(directory=directory, trial=name)


def _alone(spec: Spec, begun: datetime, directory: Path) -> RunFile:
    """The same directory is the same run, also when it is imported again."""
    digest = hashlib.sha256(f"{spec.trial} {spec.created_at} {directory.name}".encode()).hexdigest()[:12]
    return RunFile(
        run=f"import-{digest}",
        number=1,
        suite=None,
        schedule=None,
        reason="imported",
        requested_by=None,
        created_at=begun,
    )


def _add_run(session: Session, told: RunFile, spec: Spec, begun: datetime) -> Run:
    run = Run(
        id=told.run,
        suite=told.suite,
        schedule_id=told.schedule,
        seeded=spec.seeded,
        state=RunState.RUNNING,
        reason=told.reason,
        requested_by=told.requested_by,
        created_at=told.created_at,
        started_at=begun,
        commit=fit_optional(spec.provenance.commit, 64),
        dirty=spec.provenance.dirty,
        **store.described(spec.scenario),
    )
    session.add(run)
    session.flush()
    return run


def _add_trial(session: Session, run: Run, told: RunFile, spec: Spec, begun: datetime, directory: Path) -> Trial:
    scenario = spec.scenario
    trial = Trial(
        id=f"{run.id}-{told.number}",
        run_id=run.id,
        number=told.number,
        position=run.seq * store.POSITIONS + told.number,
        scenario=scenario.name,
        document=scenario.to_json(),
        runtime=scenario.runtime,
        seed=scenario.seed,
        steps=scenario.steps,
        commit=fit_optional(spec.provenance.commit, 64),
        dirty=spec.provenance.dirty,
        directory=str(directory),
        state=RunState.RUNNING,
        spawned=True,
        started_at=begun,
    )
    session.add(trial)
    session.flush()
    for fault in scenario.planned:
        store.add_fault(session, trial, fault, live=False, by=told.requested_by)
    return trial


def _live(requests: Sequence[object], known: set[str]) -> list[PlannedFault]:
    """What was asked for while the trial ran, as the tables take it. Who asked is not told there."""
    found: dict[str, PlannedFault] = {}
    for request in requests:
        if not isinstance(request, FaultRequest) or request.fault.id in known:
            continue
        if re.fullmatch(FAULT_ID_PATTERN, request.fault.id):  # REST gives no other ones, and the tables take none
            fault = replace(request.fault, reason=fit_text(request.fault.reason, MOST_DETAIL))
            found.setdefault(fault.id, fault)
    return list(found.values())


def _requests(directory: Path) -> Sequence[object]:
    try:
        return RequestTail(TrialDirectory(directory).requests_file).read()
    except OSError:  # what cannot be read is not known: no reason to know nothing of the trial
        return []


def _conclude(
    session: Session, run: Run, trial: Trial, result: Result | None, ended: datetime | None, *, cancelled: bool
) -> None:
    error = None if result is None else result.error
    state = state_of_ended_trial(has_result=result is not None, error=error, cancelled=cancelled)
    if result is None:
        endings.end_trial(session, trial, state, None, "its directory holds no result")
    else:
        endings.end_trial(session, trial, state, result.verdict, result.error)
        trial.checks = {name: check.to_json() for name, check in result.checks.items()}
        trial.finished_at = ended
        replace_recoveries(session, trial.id, [recovery.to_json() for recovery in result.recoveries])
        history.add_directory(session, TrialDirectory(Path(str(trial.directory))), result)
    session.flush()
    endings.end_run_if_over(session, run, tell=False)
    newest = select(func.max(Trial.finished_at)).where(Trial.run_id == run.id).scalar_subquery()
    session.execute(update(Run).where(Run.id == run.id).values(finished_at=newest))


def _moment(text: str, file: Path) -> datetime:
    """Raises ValueError, which names the file, for a time that there is not."""
    try:
        found = datetime.fromisoformat(text)
        return to_utc(found if found.tzinfo else found.replace(tzinfo=UTC))
    except ValueError as error:
        raise ValueError(f"{file}: {text[:40]!r}: {error}") from None


def _directories(path: Path) -> list[Path]:
    if (path / "spec.json").is_file():
        return [path.absolute()]
    return sorted(child.parent.absolute() for child in path.glob("*/spec.json"))
