"""Which code a trial ran: commit, whether the working tree differs from it, and versions."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_DISTRIBUTIONS = ("phoenix-resilience", "torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """`commit` is None outside of a git checkout; `dirty` is None where it is not known."""

    commit: str | None
    dirty: bool | None
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        return {"commit": self.commit, "dirty": self.dirty, "versions": dict(self.versions)}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Provenance:
        commit, dirty, versions = data.get("commit"), data.get("dirty"), data.get("versions")
        return Provenance(
            commit=None if commit is None else str(commit),
            dirty=None if dirty is None else bool(dirty),
            versions=dict(versions) if isinstance(versions, Mapping) else {},
        )


def provenance() -> Provenance:
    """Of the checkout that this package was imported from."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():  # installed into site-packages: some other repository may be around it
        return Provenance(commit=None, dirty=None, versions=_versions())
    status = _git(root, "status", "--porcelain")
    dirty = None if status is None else bool(status)
    return Provenance(commit=_git(root, "rev-parse", "--verify", "HEAD"), dirty=dirty, versions=_versions())


def _git(root: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
