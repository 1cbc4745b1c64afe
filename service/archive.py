"""Runs out of the database and into it again, by way of the directories of their trials.

A directory holds all of a trial: what it was asked, its events, its result. An export is a tar file of directories; an
import makes rows of directories, whoever made them, and leaves alone what the database knows already. What people
decided and noted is in no directory: an export of all runs has it as a file (decisions.py).
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from chaos.errors import ChaosError
from chaos.record import Result, Spec, TrialDirectory
from service import decisions, endings, history, store
from service.database import Database
from service.fitting import fit_text
from service.hub import Hub
from service.ingest import TrialReader, replace_recoveries
from service.runfile import RunFile
from service.states import RunState
from service.tables import Run, Trial


class ArchiveError(Exception):
    """What cannot be exported or imported; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of one directory. `trial` is its row; `reason` says why there is no new one, `broken` that there
    should be one."""

    directory: Path
    trial: str | None
    reason: str = ""
    broken: bool = False


# --- out -------------------------------------------------------------------------------------------------------------


def export(database: Database, runs: Sequence[str], target: Path) -> tuple[list[str], list[str]]:
    """Write the trials of these runs (of all, if none is named) into a tar.gz file: those that were, and those that are
    not here (another service ran them, or their directory is gone). Raises ArchiveError."""
    with database.read() as session:
        query = select(Trial).where(Trial.directory.is_not(None)).order_by(Trial.position)
        if runs:
            known = set(session.scalars(select(Run.id).where(Run.id.in_(runs))))
            if unknown := sorted(set(runs) - known):
                raise ArchiveError(f"there is no run {unknown[0]!r}")
            query = query.where(Trial.run_id.in_(runs))
        trials = list(session.scalars(query))
        decided = None if runs else decisions.export(session)
    written: list[str] = []
    missing: list[str] = []
    try:
        with _whole_or_none(target), tarfile.open(target, "w:gz") as archive:
            if decided is not None:  # the first: who looks for it need not unpack all
                entry = tarfile.TarInfo(decisions.FILE)
                entry.size = len(decided)
                archive.addfile(entry, io.BytesIO(decided))
            for trial in trials:
                path = Path(str(trial.directory))
                if not (path / "spec.json").is_file():
                    missing.append(trial.id)
                    continue
                archive.add(path, arcname=trial.id, filter=_plain)
                written.append(trial.id)
    except FileExistsError:
        raise ArchiveError(f"{target} is there already; choose another file") from None
    except OSError as error:
        raise ArchiveError(f"cannot write {target}: {error.strerror or error}") from error
    return written, missing


@contextmanager
def _whole_or_none(target: Path) -> Iterator[None]:
    """A new file, which is removed where what follows ends early: the half of an export is none."""
    target.touch(exist_ok=False)
    try:
        yield
    except BaseException:  # Ctrl-C as well
        target.unlink(missing_ok=True)
        raise


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and directories only; a socket or a pid file says nothing elsewhere."""
    keep = (entry.isfile() or entry.isdir()) and Path(entry.name).name not in ("pid", "lock")
    return entry if keep else None


# --- in --------------------------------------------------------------------------------------------------------------


def import_all(database: Database, paths: Iterable[Path], trials: Path) -> Iterator[Imported]:
    """Of trial directories, directories of such, and exported files (unpacked into `trials`). Raises ArchiveError."""
    for path in paths:
        if path.is_file():
            for directory in _unpack(path, trials):
                yield import_one(database, directory)
            continue
        found = _directories(path)
        if not found:
            raise ArchiveError(f"{path} is no trial directory and holds none (there is no spec.json)")
        for directory in found:
            yield import_one(database, directory)


def import_decisions(database: Database, paths: Iterable[Path]) -> int:
    """What people decided and noted, of exported files; returns how many rows are new. Raises ArchiveError."""
    new = 0
    for path in (path for path in paths if path.is_file()):
        try:
            with tarfile.open(path) as archive:
                entry = archive.next()
                file = archive.extractfile(entry) if entry is not None and entry.name == decisions.FILE else None
                text = None if file is None else file.read()
            if text is not None:
                with database.write() as session:
                    new += decisions.take_in(session, text)
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise ArchiveError(f"{path}: {decisions.FILE}: {error}") from error
    return new


def import_one(database: Database, directory: Path) -> Imported:
    """Rows of one trial: it, its run, its events, samples and recoveries."""
    source = TrialDirectory(directory)
    try:
        spec, result, alive = source.read_spec(), source.read_result(), source.is_alive()
    except ChaosError as error:
        return Imported(directory=directory, trial=None, reason=str(error), broken=True)
    if alive:
        return Imported(directory=directory, trial=None, reason="it is running; import it when it has ended")
    told = RunFile.read(directory) or _alone(spec, directory)
    name = f"{told.run}-{told.number}"
    with database.write() as session:
        if session.get(Trial, name) is not None:
            return Imported(directory=directory, trial=None, reason=f"{name} is there already")
        run = store.find_run(session, told.run) or _add_run(session, told, spec)
        trial = _add_trial(session, run, told, spec, directory)
        if told.number == max(other.number for other in store.trials_of(session, run.id)):
            run.step = run.part = None
            for column, value in store.described(spec.scenario).items():
                setattr(run, column, value)
    TrialReader(database, Hub(), run.id, trial.id, directory).read()
    with database.write() as session:
        _conclude(session, name, result)
    return Imported(directory=directory, trial=name)


def _alone(spec: Spec, directory: Path) -> RunFile:
    """The same directory is the same run, also when it is imported again."""
    digest = hashlib.sha256(f"{spec.trial} {spec.created_at} {directory.name}".encode()).hexdigest()[:12]
    return RunFile(
        run=f"import-{digest}",
        number=1,
        suite=None,
        schedule=None,
        reason="imported",
        requested_by=None,
        created_at=spec.created_at,
    )


def _add_run(session: Session, told: RunFile, spec: Spec) -> Run:
    run = Run(
        id=fit_text(told.run, 32),
        suite=told.suite,
        schedule_id=told.schedule,
        seeded=spec.seeded,
        state=RunState.RUNNING,
        reason=told.reason,
        requested_by=told.requested_by,
        created_at=_moment(told.created_at),
        started_at=_moment(spec.created_at),
        commit=spec.provenance.commit,
        dirty=spec.provenance.dirty,
        **store.described(spec.scenario),
    )
    session.add(run)
    session.flush()
    return run


def _add_trial(session: Session, run: Run, told: RunFile, spec: Spec, directory: Path) -> Trial:
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
        commit=spec.provenance.commit,
        dirty=spec.provenance.dirty,
        directory=str(directory),
        state=RunState.RUNNING,
        spawned=True,
        started_at=_moment(spec.created_at),
    )
    session.add(trial)
    session.flush()
    for fault in scenario.planned:
        store.add_fault(session, trial, fault, live=False, by=told.requested_by)
    return trial


def _conclude(session: Session, name: str, result: Result | None) -> None:
    trial = session.get_one(Trial, name)
    run = session.scalars(select(Run).where(Run.id == trial.run_id)).one()
    if result is None:
        endings.end_trial(session, trial, RunState.ABANDONED, None, "its directory holds no result")
    else:
        state = RunState.FINISHED
        endings.end_trial(session, trial, state, result.verdict, result.error)
        trial.checks = {name: check.to_json() for name, check in result.checks.items()}
        trial.finished_at = _moment(result.finished_at)
        replace_recoveries(session, trial.id, [recovery.to_json() for recovery in result.recoveries])
        history.add_directory(session, TrialDirectory(Path(str(trial.directory))), result)
    session.flush()
    endings.end_run_if_over(session, run, tell=False)
    newest = select(func.max(Trial.finished_at)).where(Trial.run_id == run.id).scalar_subquery()
    session.execute(update(Run).where(Run.id == run.id).values(finished_at=newest))


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _directories(path: Path) -> list[Path]:
    if (path / "spec.json").is_file():
        return [path.absolute()]
    return sorted(child.parent.absolute() for child in path.glob("*/spec.json"))


def _unpack(file: Path, trials: Path) -> list[Path]:
    try:
        with tarfile.open(file) as archive:
            names = sorted({Path(name).parts[0] for name in archive.getnames() if Path(name).parts} - {decisions.FILE})
            if foreign := sorted({"/", ".."} & set(names)):
                raise ArchiveError(f"{file} is no export of trials: it holds names that begin with {foreign[0]}")
            wanted = [name for name in names if not (trials / name).exists()]
            trials.mkdir(parents=True, exist_ok=True)
            members = [entry for entry in archive if Path(entry.name).parts[:1] and Path(entry.name).parts[0] in wanted]
            archive.extractall(trials, members=members, filter="data")
    except tarfile.ReadError as error:  # its own words name every compression that was tried
        raise ArchiveError(f"cannot unpack {file}: it is no whole tar file, as `phoenix export` writes it") from error
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ArchiveError(f"cannot unpack {file}: {error}") from error
    return [trials / name for name in names]
