"""Faults in the checkpoints of a job: files that this trial's job has written, and no others."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.agent.mailbox import Json
from chaos.errors import TargetGone
from chaos.faultkind import FaultKind
from chaos.faults import PlannedFault
from chaos.injectors.base import Active, Injector, Reverted, receipt
from chaos.kinds_storage import (
    CHECKPOINT_CORRUPT,
    CHECKPOINT_MOVE,
    CHECKPOINT_PARTIAL,
    CHECKPOINT_TRUNCATE,
    DISK_FULL,
)
from chaos.roster import WorkerInfo

FILLER: Final = ".filled-by-chaos"
ASIDE: Final = "moved-by-chaos"
NONE_YET: Final = "no checkpoint has been written yet (set checkpoint_every lower, or the trigger later)"


def storage_injectors(checkpoints: Path, seed: int = 0) -> Mapping[str, Injector]:
    """Those for the checkpoints in this directory."""
    files = ((CHECKPOINT_TRUNCATE, _truncate), (CHECKPOINT_CORRUPT, _corrupt), (CHECKPOINT_PARTIAL, _make_partial))
    injectors: list[Injector] = [DamagedFile(kind, damage, checkpoints, seed) for kind, damage in files]
    injectors += [MovedCheckpoint(checkpoints), FullDisk(checkpoints)]
    return {injector.kind.kind: injector for injector in injectors}


Damage = Callable[[Path, int | None, random.Random], Json]


class DamagedFile:
    """A file of the newest checkpoint is changed, once and for good."""

    def __init__(self, kind: FaultKind, damage: Damage, checkpoints: Path, seed: int) -> None:
        self.kind = kind
        self._damage = damage
        self._checkpoints = checkpoints
        self._seed = seed

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        with _clear_errors():
            newest = _newest(_seen_by(worker, self._checkpoints))
            at = time.monotonic_ns()
            done = self._damage(newest, worker.rank, random.Random(f"{self._seed}/{fault.id}"))
        return _Stored(self.kind, fault, worker, at, {"checkpoint": newest.name, **done}, None)


class MovedCheckpoint:
    """The newest checkpoint is put beside its place, and back."""

    kind: Final[FaultKind] = CHECKPOINT_MOVE

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        root = _seen_by(worker, self._checkpoints)
        with _clear_errors(), _held(root) as held:
            name = _newest(root).name
            aside = f"{ASIDE}-{name}"
            at = time.monotonic_ns()
            os.rename(name, aside, src_dir_fd=held, dst_dir_fd=held)
        proof = {"checkpoint": name, "moved_to": aside}
        return _Stored(self.kind, fault, worker, at, proof, Undo(held, lambda: _move_back(held, aside, name)))


def _move_back(root: int, aside: str, name: str) -> bool:
    """Where the job has written the same one again, that is the one which stays."""
    try:
        os.rename(aside, name, src_dir_fd=root, dst_dir_fd=root)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            shutil.rmtree(aside, ignore_errors=True, dir_fd=root)
        return False
    return True


class FullDisk:
    """A file takes all the room that the disk of the checkpoints has left."""

    kind: Final[FaultKind] = DISK_FULL

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active:
        root = _seen_by(worker, self._checkpoints)
        with _clear_errors(), _held(root) as held:
            if os.fstat(held).st_dev == os.stat(self._checkpoints.parent).st_dev:
                none = "the checkpoints have no disk of their own: such a fault must be planned in the scenario"
                raise TargetGone(none)
            at = time.monotonic_ns()
            proof = {"taken_bytes": _fill(held), "free_bytes": _free(held)}
        return _Stored(
            self.kind, fault, worker, at, proof, Undo(held, lambda: _empty(held), lambda: {"free_bytes": _free(held)})
        )


def _fill(root: int) -> int:
    """Take what is left: first in large pieces, then in pages."""
    taken = 0
    try:
        descriptor = os.open(FILLER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=root)
    except FileExistsError:
        raise TargetGone("another fault fills this disk already") from None
    try:
        for piece in (1 << 20, 4096):
            try:
                while True:
                    os.posix_fallocate(descriptor, taken, piece)
                    taken += piece
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    finally:
        os.close(descriptor)
    return taken


def _empty(root: int) -> bool:
    try:
        os.unlink(FILLER, dir_fd=root)
        return _free(root) > 0
    except OSError:
        return False


def _free(root: int) -> int:
    space = os.fstatvfs(root)
    return space.f_bavail * space.f_frsize


@dataclass
class Undo:
    """`act` takes it back below the directory that is `held` open, and answers whether there was something to take
    back, and that it was; `seen` says what shows that."""

    held: int
    act: Callable[[], bool]
    seen: Callable[[], Json] = dict


class _Stored:
    """A fault in files, which `undo` takes back (None: nothing can)."""

    over: Final = ""

    def __init__(
        self, kind: FaultKind, fault: PlannedFault, worker: WorkerInfo, at: int, proof: Json, undo: Undo | None
    ) -> None:
        self.injection = receipt(fault, kind, worker, at, proof)
        self.ttl_s = float(str(fault.params["ttl_s"])) if kind.lasting else None
        self._undo = undo

    def revert(self) -> Reverted:
        if self._undo is None:
            return Reverted(alive=False)
        alive = self._undo.act()
        seen = self._undo.seen() if alive else {}
        self.close()
        return Reverted(alive=alive, proof=seen)

    def close(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            os.close(undo.held)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[int]:
    """A descriptor of it, for what is to be taken back there: the process through which it was seen may end before.

    It stays open, unless the block fails.
    """
    if not directory.is_dir():
        raise TargetGone(NONE_YET)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.ExitStack() as unless_it_works:
        unless_it_works.callback(os.close, descriptor)
        yield descriptor
        unless_it_works.pop_all()


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """A job may remove an old checkpoint, or end with its disk, while it is looked at. Raises TargetGone."""
    try:
        yield
    except OSError as error:
        raise TargetGone(f"the checkpoints could not be changed: {error}") from error


# --- which files -----------------------------------------------------------------------------------------------------


def _seen_by(worker: WorkerInfo, directory: Path) -> Path:
    """The directory as the job sees it, on a disk that may be its own."""
    through = Path(f"/proc/{worker.pid}/root{directory}")
    return through if through.is_dir() else directory


def _newest(root: Path) -> Path:
    """The checkpoint whose directory got a file last. Raises TargetGone where none has any."""
    found = [path for path in root.iterdir() if path.is_dir() and ASIDE not in path.name] if root.is_dir() else []
    dated = [(max(map(_written, files)), path) for path in found if (files := _files(path))]
    if not dated:
        raise TargetGone(NONE_YET)
    return max(dated)[1]


def _files_of(checkpoint: Path, rank: int | None) -> list[Path]:
    """The files whose first number is the rank's (`rank-1.w3/__0_0.distcp`, `__1_0.distcp`); all where none is."""
    files = _files(checkpoint)
    first = {path: re.search(r"\d+", str(path.relative_to(checkpoint))) for path in files}
    own = [path for path, number in first.items() if number is not None and int(number[0]) == rank]
    return own or files


def _files(directory: Path) -> list[Path]:
    """Regular files below, none of them by a link."""
    return [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns


def _largest(files: list[Path]) -> tuple[Path, int]:
    """With its size. Raises TargetGone where all are empty: such a one cannot be damaged."""
    size, path = max((path.stat().st_size, path) for path in files)
    if not size:
        raise TargetGone(f"{path}: this file and all others of the checkpoint are empty")
    return path, size


def _truncate(checkpoint: Path, rank: int | None, _draw: random.Random) -> Json:
    path, size = _largest(_files_of(checkpoint, rank))
    os.truncate(path, size // 2)
    return {"file": str(path.relative_to(checkpoint)), "bytes": size, "bytes_left": path.stat().st_size}


def _corrupt(checkpoint: Path, rank: int | None, draw: random.Random) -> Json:
    path, size = _largest(_files_of(checkpoint, rank))
    place, bit = draw.randrange(size), draw.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        before = file.read(1)[0]
        file.seek(place)
        file.write(bytes([before ^ (1 << bit)]))
        file.seek(place)
        after = file.read(1)[0]
    return {"file": str(path.relative_to(checkpoint)), "byte": place, "bit": bit, "before": before, "after": after}


def _make_partial(checkpoint: Path, _rank: int | None, _draw: random.Random) -> Json:
    """Whoever writes the last file makes the checkpoint whole, for all ranks."""
    path = max(_files(checkpoint), key=lambda path: (_written(path), path))
    path.unlink()
    return {"file": str(path.relative_to(checkpoint)), "removed": not path.exists()}
