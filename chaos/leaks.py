"""What a launch left behind on this machine: processes, memory, sockets, namespaces, mounts, control groups, files."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = Path("/dev/shm")
CGROUPS: Final = Path("/sys/fs/cgroup")
NAMED_NAMESPACES: Final = Path("/run/netns")


@dataclass(frozen=True, kw_only=True)
class LeakReport:
    """Names of what was left. Processes were ended when they were found; everything else stays where it is."""

    processes: tuple[str, ...] = ()
    shared_memory: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def everything(self) -> tuple[str, ...]:
        titles = ("process", "shared memory", "socket", "namespace", "mount", "control group", "file")
        kinds = (getattr(self, field.name) for field in fields(self))
        return tuple(f"{title} {name}" for title, names in zip(titles, kinds, strict=True) for name in names)

    def __or__(self, other: LeakReport) -> LeakReport:
        return LeakReport(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What exists now of that which carries no owner; taken before a launch, it tells later what came since.

    `namespaces`: those that have a name, and those that a descriptor of this process keeps.
    """

    shared_memory: frozenset[str]
    namespaces: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]


def footprint() -> Footprint:
    """Looks, and changes nothing."""
    return Footprint(
        shared_memory=_names(SHARED_MEMORY),
        namespaces=_names(NAMED_NAMESPACES) | frozenset(_held_namespaces()),
        mounts=frozenset(_mounts()),
        cgroups=frozenset(_cgroups()),
        files=_names(Path(tempfile.gettempdir())),
    )


def find_leaks(*, directory: Path, processes: Iterable[str], pids: Iterable[int], before: Footprint) -> LeakReport:
    """What is left of a launch that had these pids and whose files are under `directory`.

    Most of it carries no owner after a process has ended, and other jobs of this machine make their own at the same
    time. It counts as ours if it is new and its name holds one of our pids (as torch's, Python's and our own names do)
    or our directory; a namespace also if this very process keeps it.
    """
    now, own = footprint(), {str(pid) for pid in pids}

    def ours(kind: str) -> tuple[str, ...]:
        new = getattr(now, kind) - getattr(before, kind)
        return tuple(
            sorted(
                name
                for name in new
                if own & set(re.findall(r"\d+", name)) or str(directory) in name or name.startswith("net:")
            )
        )

    return LeakReport(
        processes=tuple(processes),
        shared_memory=ours("shared_memory"),
        sockets=tuple(sorted(_sockets(directory))),
        namespaces=ours("namespaces"),
        mounts=ours("mounts"),
        cgroups=ours("cgroups"),
        files=ours("files"),
    )


def _names(directory: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return frozenset()


def _held_namespaces() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if target.startswith("net:["):
            yield target


def _mounts() -> Iterator[str]:
    """Mount points; the kernel writes spaces in them as octal numbers, and so do we."""
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        yield line.split()[4]


def _cgroups() -> Iterator[str]:
    for parent, names, _ in os.walk(CGROUPS):
        for name in names:
            if name.startswith("phoenix"):
                yield os.path.relpath(os.path.join(parent, name), CGROUPS)


def _sockets(directory: Path) -> list[str]:
    found = []
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                found.append(path)
    return found
