"""The branches of a checkout, and which commits each is made of: what of a history is drawn for one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Final

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
        self._lines: dict[str, frozenset[str]] = {}

    def holding(self, commits: Collection[str]) -> list[str]:
        """Names of those with any of these commits, the newest first."""
        wanted = frozenset(commits)
        with self._lock:
            heads = self._read()
            return [name for name, commit in heads.items() if not wanted.isdisjoint(self._line(commit))]

    def line(self, name: str) -> frozenset[str]:
        """Its commits along first parents, as many as a history goes back. Raises UnknownBranch."""
        with self._lock:
            heads = self._read()
            if name not in heads:
                raise UnknownBranch(f"there is no branch {name!r}; there are: {', '.join(heads) or 'none'}")
            return self._line(heads[name])

    def _read(self) -> Mapping[str, str]:
        if self._repository is not None and time.monotonic() - self._asked_at > FRESH_S:
            try:
                self._heads = self._repository.branches()
            except GitError:  # the checkout was moved away, say: what was measured is there nevertheless
                self._heads = {}
            self._asked_at = time.monotonic()
        return self._heads

    def _line(self, commit: str) -> frozenset[str]:
        """Remembered, since what comes before a commit never changes."""
        if commit not in self._lines:
            assert self._repository is not None
            if len(self._lines) >= MOST_LINES:
                self._lines.clear()
            try:
                self._lines[commit] = frozenset(self._repository.ancestors(commit))
            except GitError:  # it went since git was asked
                return frozenset()
        return self._lines[commit]
