"""What the two arguments of a comparison mean: directories of trials, or revisions whose trials a history holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from chaos.collect import collect
from chaos.compare.rows import Side
from chaos.compare.rule import RULE
from chaos.compare.samples import Code
from chaos.errors import ChaosError
from chaos.git import GitError, Repository

_HEX = re.compile(r"[0-9a-f]{4,40}")


class NoSamples(ChaosError):
    """There is nothing to compare under this name; the message lists what there is."""


def directory_side(path: Path) -> Side:
    """All trials below a directory. Raises NoSamples where none is finished."""
    found = collect(path)
    if not found.samples:
        why = f": {found.skipped[0]}" if found.skipped else ""
        raise NoSamples(f"{path} holds no finished trial (a directory with spec.json and result.json){why}")
    codes = sorted({sample.code for sample in found.samples})
    name = str(path)
    return Side(name=name if len(codes) > 1 else f"{name} ({codes[0].short})", samples=found.samples)


def codes_named(name: str, codes: Sequence[Code], repository: Repository | None) -> list[Code]:
    """Those of a revision: a commit or the beginning of one, COMMIT-DIFF, or anything that git knows.

    `codes`: what was measured, the newest first. Trials of a dirty tree are found under COMMIT-DIFF only: they are
    another code than their commit. Raises NoSamples.
    """
    found = _named(name, codes)
    if not found and (commit := _resolved(name, repository, codes)) is not None:
        found = [code for code in codes if code.commit == commit and not code.diff]
        if not found:
            raise NoSamples(_nothing_of(name, commit, codes))
    if not found:
        raise NoSamples(f"no trial of {name!r} is known; {_listed(codes)}")
    if len({code.commit for code in found}) > 1:
        raise NoSamples(f"{name!r} is the beginning of several commits: {', '.join(c.short for c in found)}")
    return found


def missing_ancestors(side: Side, repository: Repository | None) -> frozenset[str]:
    """Whose trials stand in for sessions that a base has too few of; none where it has enough of its own."""
    commit = side.samples[-1].code.commit if side.samples else ""
    if repository is None or len({sample.session for sample in side.samples}) >= RULE.least_sessions:
        return frozenset()
    try:
        return frozenset(repository.ancestors(commit)[1:])
    except GitError:
        return frozenset()


def _named(name: str, codes: Sequence[Code]) -> list[Code]:
    commit, _, diff = name.partition("-")
    if not _HEX.fullmatch(commit):
        return []
    if diff:
        return [code for code in codes if code.commit.startswith(commit) and code.diff.startswith(diff)]
    clean = [code for code in codes if code.commit.startswith(commit) and not code.diff]
    if not clean and (dirty := [code for code in codes if code.commit.startswith(commit)]):
        raise NoSamples(_nothing_of(name, dirty[0].commit, codes))
    return clean


def _resolved(name: str, repository: Repository | None, codes: Sequence[Code]) -> str | None:
    if repository is None:
        return None
    try:
        return repository.commit(name)
    except GitError as error:
        raise NoSamples(f"{error}; {_listed(codes)}") from None


def _nothing_of(name: str, commit: str, codes: Sequence[Code]) -> str:
    dirty = [code for code in codes if code.commit == commit]
    if dirty:
        names = ", ".join(f"{code.commit[:9]}-{code.diff}" for code in dirty)
        return f"{name} ({commit[:9]}) was measured only with uncommitted changes; name them: {names}"
    return f"no trial of {name} ({commit[:9]}) is known; {_listed(codes)}. Measure it now with --ab"


def _listed(codes: Sequence[Code]) -> str:
    if not codes:
        return "the history is empty: `phoenix trial FILE` adds to it"
    return f"there are trials of {', '.join(code.short for code in codes[:8])}{' ...' if len(codes) > 8 else ''}"
