"""Codes to measure beside each other: each commit in a worktree of its own, with an environment that fits it.

Worktrees lie in a directory that names the process that made them. They go when it ends; those of a process that was
killed are found and removed by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.compare.samples import Code
from chaos.errors import ChaosError
from chaos.git import GitError, Repository
from chaos.procfs import start_ticks
from chaos.provenance import tree_diff

WORKING_TREE: Final = "."
_COMPLETE: Final = ".complete"
Tell = Callable[[str], None]


class ArmError(ChaosError):
    """A commit that cannot be made ready to run; the message says what failed and where the log lies."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One code, ready to run: its files at `root`, and the Python that has its dependencies."""

    name: str
    code: Code
    root: Path
    python: str

    def check_unchanged(self) -> None:
        """Raises ArmError where a working tree was edited while it was measured; nobody edits the worktrees."""
        if self.name == WORKING_TREE and (tree_diff(self.root) or "") != self.code.diff:
            raise ArmError(f"{self.root} was changed while it was measured: the trials are of different codes")


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a commit asks pip for, and which versions it pins."""

    wanted: tuple[str, ...]
    constraints: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([sorted(self.wanted), self.constraints]).encode()).hexdigest()[:12]


class Workshop:
    """Makes arms below `directory`. Use `with`: its end removes the worktrees; environments stay for the next time."""

    def __init__(self, repository: Repository, directory: Path, tell: Tell) -> None:
        self._repository = repository
        self._directory = directory
        self._tell = tell
        self._own = directory / "worktrees" / f"{os.getpid()}-{start_ticks(os.getpid())}"
        self._told: set[str] = set()
        self._running = _dependencies_at(Path(__file__).resolve().parents[1])

    def __enter__(self) -> Workshop:
        """Raises ArmError where the directory cannot be used."""
        for path in sweep(self._directory):
            self._tell(f"removed the worktrees of a comparison that was killed: {path}")
        try:
            self._own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArmError(f"cannot use {self._own}: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self._own)

    def arms(self, *revisions: str) -> list[Arm]:
        """`.` is the working tree as it is. Raises GitError or ArmError."""
        codes = [self._code(revision) for revision in revisions]
        wanted = [self._dependencies(code, revision) for code, revision in zip(codes, revisions, strict=True)]
        return [
            Arm(
                name=revision,
                code=code,
                root=self._root(code, revision),
                python=self._python(needs, same=len({each.digest for each in wanted}) == 1),
            )
            for revision, code, needs in zip(revisions, codes, wanted, strict=True)
        ]

    def _code(self, revision: str) -> Code:
        if revision == WORKING_TREE:
            return Code(commit=self._repository.commit("HEAD"), diff=tree_diff(self._repository.root) or "")
        return Code(commit=self._repository.commit(revision))

    def _root(self, code: Code, revision: str) -> Path:
        if revision == WORKING_TREE:
            return self._repository.root
        path = self._own / code.commit[:12]
        if not path.exists():
            self._repository.add_worktree(path, code.commit)
        return path

    def _dependencies(self, code: Code, revision: str) -> Dependencies:
        if revision == WORKING_TREE:
            return _dependencies_at(self._repository.root)
        files = [self._repository.file(code.commit, name) for name in ("pyproject.toml", "constraints.txt")]
        return _dependencies(*files)

    def _python(self, needs: Dependencies, *, same: bool) -> str:
        if same or needs.digest == self._running.digest:
            why = "all commits have the same dependencies" if same else "its dependencies are those installed here"
            self._tell_once(f"environment: the running one ({sys.prefix}), because {why}")
            return sys.executable
        return self._environment(needs)

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    def _environment(self, needs: Dependencies) -> str:
        path = self._directory / "environments" / needs.digest
        python = path / "bin" / "python"
        if (path / _COMPLETE).exists():
            self._tell_once(f"environment: {path}, made earlier for these dependencies")
            return str(python)
        self._tell(f"environment: installing {len(needs.wanted)} requirements into {path}")
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        (path / "constraints.txt").write_text(needs.constraints)
        (path / "requirements.txt").write_text("\n".join(needs.wanted) + "\n")
        log = path / "install.log"
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
        steps = (
            [sys.executable, "-m", "venv", "--without-pip", str(path)],
            [*pip, "-c", str(path / "constraints.txt"), "-r", str(path / "requirements.txt")],
        )
        with log.open("w") as output:
            for command in steps:
                if subprocess.run(
                    command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=False
                ).returncode:
                    said = log.read_text(errors="replace").strip().splitlines()
                    raise ArmError(
                        f"cannot make the environment {path}: {said[-1] if said else 'no reason given'} ({log})"
                    )
        (path / _COMPLETE).touch()
        return str(python)


def sweep(directory: Path) -> list[Path]:
    """Remove the worktrees of processes that are no more; which those were."""
    swept = []
    for own in sorted((directory / "worktrees").glob("*-*")):
        pid, _, ticks = own.name.partition("-")
        if not (pid.isdigit() and ticks.isdigit() and start_ticks(int(pid)) == int(ticks)):
            _remove(own)
            swept.append(own)
    return swept


def _remove(own: Path) -> None:
    """The files first, then git's record of them: what a kill interrupted is then complete the next time."""
    repositories = {place for path in own.glob("*/.git") if (place := _repository_of(path)) is not None}
    shutil.rmtree(own, ignore_errors=True)
    for place in repositories:
        with contextlib.suppress(GitError):
            Repository(root=place).prune_worktrees()


def _repository_of(link: Path) -> Path | None:
    """A worktree's .git is a file that says `gitdir: REPOSITORY/.git/worktrees/NAME`."""
    try:
        place = Path(link.read_text().removeprefix("gitdir:").strip())
    except OSError:
        return None
    return place.parents[1] if len(place.parents) > 1 and place.parents[1].is_dir() else None


def _dependencies_at(root: Path) -> Dependencies:
    return _dependencies(*(_bytes(root / name) for name in ("pyproject.toml", "constraints.txt")))


def _dependencies(project: bytes | None, constraints: bytes | None) -> Dependencies:
    """Raises ArmError for a pyproject.toml that is none."""
    try:
        table = tomllib.loads((project or b"").decode()).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArmError(f"pyproject.toml of a commit cannot be read: {error}") from None
    return Dependencies(
        wanted=tuple(str(name) for name in table.get("dependencies", ())), constraints=(constraints or b"").decode()
    )


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
