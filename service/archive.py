"""Exported files: the directories of trials in a tar file, written and unpacked.

A directory holds all of a trial: what it was asked, its events, its result, and in `run.json` its run. What people
decided and noted is in no directory: an export of all runs has it as a file (decisions.py).
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import select

from chaos.errors import ChaosError
from chaos.record import TrialDirectory
from service import decisions, runfile
from service.database import Database
from service.decisions import Decisions
from service.runfile import RunFile
from service.tables import Run, Trial

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without, whose tarfile reads none of it
    LZMAError = OSError  # type: ignore[misc, assignment]

# What tarfile raises for damage, and for names and times that no file can have.
DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error, LZMAError, ValueError, OverflowError)
ASIDE: Final = ".unpacking"
"""In the directory of trials: what is being unpacked; hidden, so that nobody takes it for trials (`chaos.collect`)."""


class ArchiveError(Exception):
    """What cannot be exported or imported; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """Directories of the trials that a file holds, and why the others of these names are none."""

    trials: list[Path]
    broken: dict[Path, str]


# --- out -------------------------------------------------------------------------------------------------------------


def export(database: Database, runs: Sequence[str], target: Path) -> tuple[list[str], list[str]]:
    """Write the trials of these runs (of all, if none is named) into a tar.gz file: those that were, and those that are
    not here (another service ran them, or their directory is gone). Raises ArchiveError."""
    with database.read() as session:
        query = select(Trial, Run).join(Run, Run.id == Trial.run_id).where(Trial.directory.is_not(None))
        if runs:
            known = set(session.scalars(select(Run.id).where(Run.id.in_(runs))))
            if unknown := sorted(set(runs) - known):
                raise ArchiveError(f"there is no run {unknown[0]!r}")
            query = query.where(Trial.run_id.in_(runs))
        trials = [(row.Trial, row.Run) for row in session.execute(query.order_by(Trial.position))]
        decided = None if runs else decisions.export(session)
    written: list[str] = []
    missing: list[str] = []
    try:
        with _whole_or_none(target), tarfile.open(target, "w:gz") as archive:
            if decided is not None:
                _add(archive, decisions.FILE, decided)
            for trial, run in trials:
                path = Path(str(trial.directory))
                if not (path / "spec.json").is_file():
                    missing.append(trial.id)
                    continue
                archive.add(path, arcname=trial.id, filter=_plain)
                if not (path / runfile.NAME).exists():  # else the trial would be another one elsewhere, by itself
                    _add(archive, f"{trial.id}/{runfile.NAME}", RunFile.of(run, trial).to_json())
                written.append(trial.id)
    except FileExistsError:
        raise ArchiveError(f"{target} is there already; choose another file") from None
    except OSError as error:
        raise ArchiveError(f"cannot write {target}: {error.strerror or error}") from error
    return written, missing


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


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


def read_decisions(paths: Iterable[Path]) -> list[Decisions]:
    """What people decided and noted, of exported files: of each that has it. Raises ArchiveError, also where a file is
    damaged anywhere: nothing of it shall be taken over before that is known."""
    found: list[Decisions] = []
    for path in (path for path in paths if path.is_file()):
        with _opened(path) as archive:
            for entry in archive:
                if Path(entry.name) != Path(decisions.FILE):
                    continue
                content = archive.extractfile(entry) if entry.isfile() else None
                if content is None:
                    raise ArchiveError(f"{path}: {decisions.FILE}: is no file")
                try:
                    found.append(Decisions.parse(content.read()))
                except ValueError as error:
                    raise ArchiveError(f"{path}: {decisions.FILE}: {error}") from error
    return found


def unpack(file: Path, trials: Path) -> Unpacked:
    """Into `trials`, each directory whole or not at all; those that are there already are left alone. Raises
    ArchiveError, and leaves nothing, for a file that is damaged or that does not fit on the disk."""
    names: set[str] = set()

    def wanted(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        for entry in archive:
            parts = Path(entry.name).parts
            if foreign := sorted({"/", ".."} & set(parts)):
                raise ArchiveError(f"{file} is no export of trials: it holds names with {foreign[0]}")
            if parts and parts != (decisions.FILE,):
                names.add(parts[0])
                if not (trials / parts[0]).exists():
                    yield entry

    broken: dict[Path, str] = {}
    with _aside(trials) as aside:
        with _opened(file) as archive:
            archive.extractall(aside, members=wanted(archive), filter="data")
        for place in sorted(aside.iterdir()):
            if reason := _why_no_trial(place):
                broken[file / place.name] = reason.replace(str(aside), str(file))
                names.remove(place.name)
            else:
                place.rename(trials / place.name)
    return Unpacked(trials=[trials / name for name in sorted(names)], broken=broken)


def _why_no_trial(place: Path) -> str:
    """Empty for the directory of one."""
    directory = TrialDirectory(place)
    try:
        directory.read_spec()
        directory.read_result()
    except ChaosError as error:
        return str(error)
    return ""


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    """Raises ArchiveError where it is no tar file or turns out to be damaged, at its end at the latest."""
    try:
        with tarfile.open(file) as archive:
            yield archive
            _read_to_end(file, archive)
    except tarfile.ReadError as error:  # its own words name every compression that was tried
        raise ArchiveError(
            f"cannot unpack {file}: it is no whole tar file, as `phoenix export` writes it: copy or export it again"
        ) from error
    except DAMAGED as error:
        raise ArchiveError(f"cannot unpack {file}: {error}") from error


def _read_to_end(file: Path, archive: tarfile.TarFile) -> None:
    """To tarfile whatever is no header is the end, also where the file was cut between two entries. Its real end is a
    block of zeros at least, and nothing but zeros behind it; behind them comes the checksum of all, if there is one."""
    stream = archive.fileobj
    assert stream is not None
    stream.seek(archive.offset)
    rest = stream.read(tarfile.BLOCKSIZE)
    whole = len(rest) == tarfile.BLOCKSIZE
    while whole and rest:
        whole = not rest.strip(b"\0")
        rest = stream.read(1 << 20)
    if not whole:
        last = archive.getnames()[-1]
        raise ArchiveError(
            f"cannot unpack {file}: it is damaged or was cut behind {last} (byte {archive.offset} of the tar file): "
            "copy or export it again"
        )


@contextmanager
def _aside(trials: Path) -> Iterator[Path]:
    """An empty directory in the file system of `trials`, removed in the end; by the next one, where that end never
    came. Raises ArchiveError where another process has it, or the disk takes none."""
    place = trials / ASIDE
    files = place / "files"
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if files.exists():
                shutil.rmtree(files)
            files.mkdir()
            try:
                yield files
            finally:
                shutil.rmtree(place, ignore_errors=True)
        finally:
            os.close(lock)
    except BlockingIOError:
        raise ArchiveError(f"another import is unpacking into {trials}: try again when it has ended") from None
    except OSError as error:
        raise ArchiveError(f"cannot unpack into {trials}: {error.strerror or error}") from error
