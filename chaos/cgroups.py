"""Control groups of our own, v1 or v2, each around one process of a trial; where the kernel lets us make any.

The name of a group begins with the identity of the trial's process. Whoever finds one whose trial is dead may remove
it: the warden does so at its end, and every trial before it makes the first of its own. A group holds no process for
longer than its fault, and the kernel removes none that does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chaos.procfs import start_ticks

_PREFIX: Final = "phoenix"
_numbers = itertools.count(1)


class Group:
    """One group with one process in it. Raises OSError where it cannot be made or be joined."""

    def __init__(self, controller: str, pid: int) -> None:
        """`controller`: cpu | memory. The process is not in it before `enter`."""
        sweep()
        self.version, parent = _parent(controller)
        self.path = parent / f"{_PREFIX}-{os.getpid()}-{start_ticks(os.getpid())}-{next(_numbers)}"
        self._pid = pid
        self._before = _place(controller, pid)
        self.path.mkdir()

    def set(self, name: str, value: object) -> None:
        (self.path / name).write_text(str(value))

    def read(self, name: str) -> dict[str, int]:
        """A file of lines `key value`."""
        lines = (line.split() for line in (self.path / name).read_text().splitlines())
        return {parts[0]: int(parts[1]) for parts in lines if len(parts) == 2}

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(self._pid))

    def close(self) -> None:
        """Put the process back to where it was, if it still lives, and remove the group."""
        with contextlib.suppress(OSError):
            for pid in (self.path / "cgroup.procs").read_text().split():  # children that it has started meanwhile, too
                with contextlib.suppress(OSError):
                    (self._before / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def trouble(controller: str) -> str:
    """Why no group with this controller can be made here, in a sentence; empty if one can."""
    try:
        _, parent = _parent(controller)
        probe = parent / f"{_PREFIX}-{os.getpid()}-{start_ticks(os.getpid())}-probe"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return f"no control group for {controller} can be made here: {error.strerror or error}"
    return ""


def sweep() -> None:
    """Remove all groups whose trial is dead."""
    for controller in ("cpu", "memory"):
        with contextlib.suppress(OSError):
            for path in _parent(controller)[1].glob(f"{_PREFIX}-*-*-*"):
                pid, ticks = path.name.split("-")[1:3]
                if start_ticks(int(pid)) != int(ticks):
                    with contextlib.suppress(OSError):
                        path.rmdir()


def _parent(controller: str) -> tuple[int, Path]:
    """Version and directory under which groups with this controller are made. Raises OSError where there is none."""
    place = _place(controller, os.getpid())
    for version, root, _ in _mounts(controller):
        if version == 1:
            return 1, place
        for directory in (place, root):
            enabled = (directory / "cgroup.subtree_control").read_text().split()
            if controller in enabled:
                return 2, directory
    raise FileNotFoundError(2, f"no hierarchy with the controller {controller} is mounted and enabled")


def _place(controller: str, pid: int) -> Path:
    """Where the process is now."""
    for version, root, label in _mounts(controller):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if label in controllers.split(",") or (version == 2 and not controllers):
                inside = root / path.lstrip("/")
                # In a container the path is often the host's, of which only the end is mounted here.
                return inside if inside.is_dir() else root
    raise FileNotFoundError(2, f"no hierarchy with the controller {controller} is mounted")


def _mounts(controller: str) -> Iterator[tuple[int, Path, str]]:
    """(version, mount point, label in /proc/PID/cgroup) of the hierarchies that have this controller."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and controller in options.split(","):
            yield 1, Path(point), controller
        elif kind == "cgroup2":
            with contextlib.suppress(OSError):
                if controller in (Path(point) / "cgroup.controllers").read_text().split():
                    yield 2, Path(point), ""
