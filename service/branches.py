"""The branches of a checkout, and which commits each is made of: what of a history is drawn for one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Final

from chaos.compare.history import Place
from chaos.compare.samples import Code
from chaos.errors import ChaosError
from chaos.git import GitError, Repository

# A page that asks for sixty histories of a branch asks git once.
FRESH_S: Final = 2.0
# Last commits of branches whose lines are remembered.
MOST_LINES: Final = 400


class UnknownBranch(ChaosError):
    """The message names those that there are."""


class Branches:
    """Of no checkout (None) there are none."""

    def __init__(self, repository: Repository | None) -> None:
        self._repository = repository
        self._lock = threading.Lock()
        self._heads: Mapping[str, str] = {}
        self._asked_at = float("-inf")
        self._lines: dict[str, Mapping[str, None]] = {}

    def heads(self) -> tuple[tuple[str, str], ...]:
        """Each branch with its last commit: as long as they stay, so does all else that is told here."""
        with self._lock:
            return tuple(self._read().items())

    def holding(self, commits: Collection[str]) -> list[str]:
        """Names of those with any of these commits, the newest first."""
        wanted = frozenset(commits)
        with self._lock:
            heads = self._read()
            return [name for name, commit in heads.items() if not wanted.isdisjoint(self._line(commit))]

    def line(self, name: str) -> Collection[str]:
        """Its commits along first parents, the newest first, as many as a history goes back. Raises UnknownBranch."""
        with self._lock:
            heads = self._read()
            if name not in heads:
                raise UnknownBranch(f"there is no branch {name!r}; there are: {', '.join(heads) or 'none'}")
            return self._line(heads[name])

    def places(self, first: Mapping[Code, str]) -> dict[Code, Place]:
        """Where in a history each code belongs, by when it was first measured: a commit that was measured only after
        one that followed it on some branch (a bisection does so) belongs just before that.
        """
        places: dict[Code, Place] = {code: (at, 0) for code, at in first.items()}
        with self._lock:
            lines = [self._line(commit) for commit in self._read().values()]
        for line in lines:
            after: Place | None = None
            for commit in line:
                code = Code(commit=commit)
                if code in places:
                    if after is not None and after <= places[code]:
                        places[code] = (after[0], after[1] - 1)
                    after = places[code]
        return places

    def _read(self) -> Mapping[str, str]:
        if self._repository is not None and time.monotonic() - self._asked_at > FRESH_S:
            try:
                self._heads = self._repository.branches()
            except GitError:  # the checkout was moved away, say: what was measured is there nevertheless
                self._heads = {}
            self._asked_at = time.monotonic()
        return self._heads

    def _line(self, commit: str) -> Mapping[str, None]:
        """Names in order; remembered, since what comes before a commit never changes."""
        if commit not in self._lines:
            assert self._repository is not None
            if len(self._lines) >= MOST_LINES:
                self._lines.clear()
            try:
                self._lines[commit] = dict.fromkeys(self._repository.ancestors(commit))
            except GitError:  # it went since git was asked
                return {}
        return self._lines[commit]
