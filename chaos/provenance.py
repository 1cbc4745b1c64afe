"""Which code a trial ran and where: commit, what the working tree adds to it, versions, the machine and its boot."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

from phoenix_core.events import boot_id

_DISTRIBUTIONS = ("phoenix-resilience", "torch", "numpy")
_DIFF_DIGITS = 12
_CODE: Final = ("--", ".", ":(exclude)benchmarks/results", ":(exclude)README.md")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """`commit` is None outside of a git checkout; `dirty` is None where it is not known.

    `diff` names what a dirty tree adds to its commit: two trials with the same commit and diff ran the same code.
    """

    commit: str | None
    dirty: bool | None
    versions: Mapping[str, str]
    diff: str | None = None
    machine: Mapping[str, object] = field(default_factory=dict)
    boot: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "commit": self.commit,
            "dirty": self.dirty,
            "diff": self.diff,
            "versions": dict(self.versions),
            "machine": dict(self.machine),
            "boot": self.boot,
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Provenance:
        """Documents of earlier versions know no diff, machine and boot."""
        commit, dirty, versions = data.get("commit"), data.get("dirty"), data.get("versions")
        diff, where = data.get("diff"), data.get("machine")
        return Provenance(
            commit=None if commit is None else str(commit),
            dirty=None if dirty is None else bool(dirty),
            versions=dict(versions) if isinstance(versions, Mapping) else {},
            diff=None if diff is None else str(diff),
            machine=dict(where) if isinstance(where, Mapping) else {},
            boot=str(data.get("boot") or ""),
        )


def provenance(root: Path | None = None) -> Provenance:
    """Of the checkout at `root` (else: the one that this package was imported from)."""
    root = root or Path(__file__).resolve().parents[1]
    known = {"versions": _versions(), "machine": machine(), "boot": boot_id()}
    if not (root / ".git").exists():  # installed into site-packages: some other repository may be around it
        return Provenance(commit=None, dirty=None, **known)  # type: ignore[arg-type]
    diff = tree_diff(root)
    dirty = None if diff is None else bool(diff)
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    return Provenance(commit=_text(commit), dirty=dirty, diff=diff or None, **known)  # type: ignore[arg-type]


def tree_diff(root: Path) -> str | None:
    """Names what the working tree at `root` differs by from its commit: "" for nothing, None where git cannot tell.

    New files count with their contents; what git ignores does not, nor do files that benchmarks write their results to.
    """
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=all", *_CODE)
    if status is None:
        return None
    if not status:
        return ""
    digest = hashlib.sha256(_git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color", *_CODE) or b"")
    for entry in sorted(entry for entry in status.split(b"\0") if entry.startswith(b"?? ")):
        digest.update(entry)
        path = root / os.fsdecode(entry[3:])
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIFF_DIGITS]


def machine() -> dict[str, object]:
    """What must be equal for two results to be comparable: nothing in it changes from hour to hour."""
    memory_kb = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kb) / 2**20),
        "system": platform.system(),
    }


def _git(root: Path, *arguments: str) -> bytes | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # asking must not disturb a git command of the user
    command = ["git", "-c", f"safe.directory={root}", *arguments]
    try:
        answer = subprocess.run(command, cwd=root, capture_output=True, timeout=10, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _text(answer: bytes | None) -> str | None:
    return None if answer is None else answer.decode(errors="replace").strip()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
