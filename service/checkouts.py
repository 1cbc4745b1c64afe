"""The code that a run asks for by a revision: fetched, and checked out into a directory of its own.

The service is started with one repository (`--repository`); a request names a revision of it and nothing else. Trials
of such a run start in that directory and import from there, with the Python of the service: what a commit needs beyond
what is installed it will miss, and say so in the trial's log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from chaos.git import GitError, Repository

KEPT: Final = 10
REMOTE: Final = "origin"


class Checkouts:
    """Worktrees below `directory`, one for each commit. All methods raise GitError."""

    def __init__(self, repository: Path, directory: Path) -> None:
        self._repository = Repository.around(repository)
        self._directory = directory

    def commit(self, revision: str) -> str:
        """What the revision means now, at the remote if there is one: a nightly of HEAD is of what was pushed."""
        if REMOTE not in self._repository.run("remote").split():
            return self._repository.commit(revision)
        self._repository.run("fetch", "--quiet", "--prune", "--tags", REMOTE)
        if revision == "HEAD":
            self._repository.run("remote", "set-head", REMOTE, "--auto")
        try:
            return self._repository.commit(f"{REMOTE}/{revision}")
        except GitError:
            return self._repository.commit(revision)  # a tag or a commit belongs to no remote

    def at(self, commit: str, *, in_use: Collection[str] = ()) -> Path:
        """The directory with the files of this commit; the oldest of others go, but for those `in_use`."""
        path = self._directory / commit
        if not (path / ".git").exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            self._repository.prune_worktrees()
            self._repository.add_worktree(path, commit)
            self._sweep({commit, *in_use})
        return path

    def _sweep(self, keep: Collection[str]) -> None:
        others = [path for path in self._directory.iterdir() if path.name not in keep]
        for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
            with contextlib.suppress(GitError):
                self._repository.remove_worktree(path)
