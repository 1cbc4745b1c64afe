"""Checkpoints as directories: which one is complete, which one may go. Knows nothing of what is inside.

    DIR/step-00000100/rank-0.w3/...     the files of rank 0, written by worker w3
    DIR/step-00000100/rank-0.json       written last: rank 0's files with their sizes and SHA-256

A rank's part counts once its JSON file is there, and the checkpoint once every rank's part does. Whatever is cut short,
at whichever file, lacks one of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from phoenix_core.errors import CheckpointDamaged

FORMAT: Final = 2
"""Another one whenever parts that were written before could not be read as they are meant."""
CHUNK: Final = 1 << 20
ASIDE: Final = "unusable-"
"""Before the name of a checkpoint that was set aside."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One rank's part of a checkpoint; `files` maps names below `directory` to size and SHA-256."""

    boundary: int
    rank: int
    world_size: int
    directory: str
    files: dict[str, tuple[int, str]]
    format: int = FORMAT


def step_directory(root: Path, boundary: int) -> Path:
    return root / f"step-{boundary:08d}"


def commit(root: Path, part: Part) -> None:
    """Make a part count: its files are on the disk, and now so is what says so. Raises OSError."""
    home = step_directory(root, part.boundary)
    final = home / f"rank-{part.rank}.json"
    draft = home / f"{part.directory}.json.draft"
    with draft.open("w") as file:
        json.dump(asdict(part), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(final)
    for directory in (home, root):
        sync_directory(directory)


def discard(root: Path, boundary: int, rank: int, directory: str) -> None:
    """Remove what was written of a part that does not count: on a full disk it would keep the next ones from it."""
    home = step_directory(root, boundary)
    with suppress(CheckpointDamaged):
        if read_part(root, boundary, rank).directory == directory:
            return  # it counts: what failed came later
    (home / f"{directory}.json.draft").unlink(missing_ok=True)
    shutil.rmtree(home / directory, ignore_errors=True)


def describe(root: Path, boundary: int, rank: int, world_size: int, directory: str) -> Part:
    """The part as its files are now; they are brought to the disk. Raises OSError."""
    below = step_directory(root, boundary) / directory
    files = {}
    for path in sorted(path for path in below.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[str(path.relative_to(below))] = (path.stat().st_size, sha256(path))
    sync_directory(below)
    return Part(boundary=boundary, rank=rank, world_size=world_size, directory=directory, files=files)


def read_part(root: Path, boundary: int, rank: int) -> Part:
    """Raises CheckpointDamaged for a part that is not there or cannot be read."""
    path = step_directory(root, boundary) / f"rank-{rank}.json"
    try:
        data = json.loads(path.read_text())
        files = {str(name): (int(size), str(digest)) for name, (size, digest) in data["files"].items()}
        part = Part(**{**data, "files": files})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointDamaged(f"{path}: {error}") from error
    if part.format != FORMAT:
        raise CheckpointDamaged(f"{path}: format {part.format}, of another version; this one reads format {FORMAT}")
    if (part.boundary, part.rank) != (boundary, rank):
        raise CheckpointDamaged(f"{path}: it is of another step or rank")
    if not isinstance(part.world_size, int) or not isinstance(part.directory, str):
        raise CheckpointDamaged(f"{path}: world_size is not a number, or directory not a name")
    return part


def verify(root: Path, part: Part) -> None:
    """Raises CheckpointDamaged, naming the file, where a file is not as it was written."""
    below = step_directory(root, part.boundary) / part.directory
    for name, (size, digest) in part.files.items():
        path = below / name
        try:
            if path.stat().st_size != size:
                raise CheckpointDamaged(f"{path}: {path.stat().st_size} bytes, written were {size}")
            if sha256(path) != digest:
                raise CheckpointDamaged(f"{path}: its content is not what was written")
        except OSError as error:
            raise CheckpointDamaged(f"{path}: {error.strerror}") from error
        except ValueError as error:  # no name that a file can have
            raise CheckpointDamaged(f"{path}: {error}") from error


def boundaries(root: Path, prefix: str = "") -> list[int]:
    """Steps of which anything is there, the latest first. Raises OSError where `root` cannot be listed."""
    if not root.is_dir():
        return []
    begin = f"{prefix}step-"
    names = [path.name.removeprefix(prefix) for path in root.iterdir() if path.name.startswith(begin)]
    steps = [(int(name), name) for name in (name.removeprefix("step-") for name in names) if name.isdecimal()]
    # Somebody's "step-5" is not one of ours, which are called "step-00000005".
    return sorted((step for step, name in steps if step_directory(root, step).name == f"step-{name}"), reverse=True)


def complete(root: Path, boundary: int) -> list[Part] | None:
    """Every rank's part; None where one is missing. The files themselves are not looked at."""
    try:
        first = read_part(root, boundary, 0)
        return [first, *(read_part(root, boundary, rank) for rank in range(1, first.world_size))]
    except CheckpointDamaged:
        return None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The latest checkpoint that can be used, and why later ones cannot."""

    boundary: int | None
    world_size: int
    refused: tuple[str, ...]


def newest(root: Path) -> Found:
    """The latest checkpoint that is complete and as it was written."""
    refused = []
    for boundary in boundaries(root):
        parts = complete(root, boundary)
        if parts is None:
            continue  # cut short: nobody ever took it for complete
        try:
            for part in parts:
                verify(root, part)
        except CheckpointDamaged as error:
            refused.append(str(error))
            continue
        return Found(boundary=boundary, world_size=parts[0].world_size, refused=tuple(refused))
    return Found(boundary=None, world_size=0, refused=tuple(refused))


def set_aside(root: Path, after: int) -> list[Path]:
    """Rename what lies after the step that a job begins from, so that it is neither counted nor written over.

    It was cut short, or refused as damaged. Returns the new names. Raises OSError.
    """
    moved = []
    for boundary in boundaries(root):
        if boundary > after:
            home = step_directory(root, boundary)
            moved.append(home.with_name(f"{ASIDE}{home.name}"))
            if moved[-1].is_dir():
                shutil.rmtree(moved[-1], ignore_errors=True)
            else:
                moved[-1].unlink(missing_ok=True)
            home.rename(moved[-1])
    return moved


def prune(root: Path, keep: int, written: int) -> None:
    """Remove all but the `keep` latest complete checkpoints, and what is incomplete or set aside and older than these.

    The one that was just `written`, and later ones, stay in any case.
    """
    for home in _superfluous(root, keep, written):
        # The parts first: a removal that is cut short must not leave a checkpoint that looks complete.
        for path in home.glob("rank-*.json"):
            path.unlink(missing_ok=True)
        shutil.rmtree(home, ignore_errors=True)


def _superfluous(root: Path, keep: int, written: int) -> Iterator[Path]:
    kept: list[int] = []
    for boundary in boundaries(root):
        if len(kept) >= keep and boundary < written:
            yield step_directory(root, boundary)
        elif complete(root, boundary) is not None:
            kept.append(boundary)
    for boundary in boundaries(root, ASIDE) if len(kept) >= keep else []:
        if boundary < min(*kept, written):
            yield root / f"{ASIDE}{step_directory(root, boundary).name}"


def sha256(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
