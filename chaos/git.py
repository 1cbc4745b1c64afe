"""Questions to git, without a shell, without locks, and with an end: names of commits, their order, their subjects."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.errors import ChaosError

# What a revision may look like: enough for branches, tags, HEAD~3 and v1^{}, and nothing that git takes for an option.
REVISION: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_./@{}^~+-]{0,199}")
_SECONDS: Final = 60.0
# A command line takes 2 MB; a history may hold more commits than that.
_NAMES_AT_ONCE: Final = 1000


class GitError(ChaosError):
    """git could not say or do it; the message says why, and what helps."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A checkout at `root`. All methods raise GitError."""

    root: Path

    @staticmethod
    def around(path: Path, option: str = "--repo") -> Repository:
        """The checkout that a directory belongs to; `option` is how one names another."""
        try:
            top = _run(path, "rev-parse", "--show-toplevel")
        except GitError as error:
            message = f"{path} is in no git checkout: go to one, or name one with {option} ({error})"
            raise GitError(message) from None
        return Repository(root=Path(top))

    def commit(self, revision: str) -> str:
        """The full name of the commit that a revision means."""
        if not REVISION.fullmatch(revision):
            raise GitError(f"{revision!r} cannot be the name of a revision")
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except GitError:
            raise GitError(self._unknown(revision)) from None

    def _unknown(self, revision: str) -> str:
        said = f"there is no commit {revision!r} in {self.root}"
        if self.is_shallow():
            return f"{said}: this is a shallow clone, which lacks older commits; `git fetch --unshallow` gets them"
        return f"{said}: look at `git branch --all`, or `git fetch` first"

    def is_shallow(self) -> bool:
        return self.run("rev-parse", "--is-shallow-repository") == "true"

    def ancestors(self, commit: str, *, most: int = 500) -> list[str]:
        """The commit and those before it along first parents, the newest first."""
        return self.run("rev-list", "--first-parent", f"--max-count={most}", commit).split()

    def branches(self, *, most: int = 50) -> dict[str, str]:
        """Name of each branch, here and at remotes (`origin/main`), and its last commit; the newest first."""
        listed = "--format=%(refname:short) %(objectname) %(symref)", "refs/heads", "refs/remotes"
        found = self.run("for-each-ref", "--sort=-committerdate", f"--count={most}", *listed)
        # What only stands for another branch, as origin/HEAD does, names that one as a third word.
        return dict(line.split() for line in found.splitlines() if len(line.split()) == 2)

    def between(self, good: str, bad: str) -> list[str]:
        """Commits after `good` up to `bad` along first parents, the oldest first."""
        good, bad = self.commit(good), self.commit(bad)
        line = self.run("rev-list", "--first-parent", "--reverse", f"{good}..{bad}").split()
        if not self._is_ancestor(good, bad):
            hint = "; this is a shallow clone: `git fetch --unshallow` first" if self.is_shallow() else ""
            raise GitError(
                f"{good[:12]} is no ancestor of {bad[:12]}: bisecting needs a good commit before the bad one{hint}"
            )
        if good == bad:
            raise GitError(f"{good[:12]} is both: bisecting needs a good commit before the bad one")
        return line

    def _is_ancestor(self, first: str, second: str) -> bool:
        try:
            self.run("merge-base", "--is-ancestor", first, second)
        except GitError:
            return False
        return True

    def subjects(self, commits: Iterable[str]) -> dict[str, str]:
        """The first line of each message, of those commits that are here."""
        names = [name for name in dict.fromkeys(commits) if re.fullmatch(r"[0-9a-f]{40}", name)]
        found: dict[str, str] = {}
        for first in range(0, len(names), _NAMES_AT_ONCE):
            some = names[first : first + _NAMES_AT_ONCE]
            try:
                said = self.run("log", "--no-walk=unsorted", "--ignore-missing", "-z", "--format=%H %s", *some)
            except GitError:
                continue
            found |= dict(entry.split(" ", 1) for entry in said.split("\0") if " " in entry)
        return found

    def file(self, commit: str, path: str) -> bytes | None:
        """A file as it was in a commit; None where it had none."""
        try:
            return _output(self.root, "show", "--end-of-options", f"{commit}:{path}")
        except GitError:
            return None

    def add_worktree(self, path: Path, commit: str) -> None:
        self.run("worktree", "add", "--detach", "--force", str(path), commit)

    def remove_worktree(self, path: Path) -> None:
        self.run("worktree", "remove", "--force", "--force", str(path))

    def prune_worktrees(self) -> None:
        self.run("worktree", "prune")

    def run(self, *arguments: str) -> str:
        return _run(self.root, *arguments)


def _run(place: Path, *arguments: str) -> str:
    return _output(place, *arguments).decode(errors="replace").strip()


def _output(place: Path, *arguments: str) -> bytes:
    command: Sequence[str] = ["git", "-c", "safe.directory=*", *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command,
            cwd=place,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        missing = "git is not installed" if place.is_dir() else f"there is no directory {place}"
        raise GitError(missing) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git {arguments[0]} in {place}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(said[-1] if said else f"git {arguments[0]} ended with {done.returncode}")
    return done.stdout
