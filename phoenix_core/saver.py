"""A rank's part of a checkpoint on disk, written by torch.distributed.checkpoint off the training thread.

The last resort where an owner and all holders are gone, and the state that a new job with the same directory begins
from. Each rank writes its part alone (`no_dist`): nobody waits for anybody, and a rank that dies leaves its part out.
"""

from __future__ import annotations

import pickle
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from phoenix_core import checkpoint
from phoenix_core.buffers import Key
from phoenix_core.ddp import Buckets, Layout
from phoenix_core.errors import CheckpointDamaged, SnapshotUnavailable
from phoenix_core.settings import CheckpointSettings
from phoenix_core.snapshot import Protected

HEAD: Final = "head"


@dataclass(frozen=True, kw_only=True)
class Written:
    """What became of one part; `error` is empty where it counts."""

    boundary: int
    bytes: int
    stall_ns: int
    duration_ns: int
    error: str = ""


class Saver:
    """Writes one part at a time; `on_written` is called in the writing thread."""

    def __init__(
        self,
        settings: CheckpointSettings,
        worker: str,
        protected: Protected,
        buckets: Buckets,
        on_written: Callable[[Written], None],
    ) -> None:
        import_module("torch.distributed.checkpoint")  # here, not in mid training: it takes half a second
        self._settings = settings
        self._worker = worker
        self._protected = protected
        self._buckets = buckets
        self._on_written = on_written
        self._thread: threading.Thread | None = None
        self._last: int | None = None

    def due(self, boundary: int, *, last: bool = False) -> bool:
        """Whether a checkpoint of `boundary` is wanted; one of the `last` always is."""
        return boundary > 0 and boundary != self._last and (last or boundary % self._settings.every == 0)

    def save(self, boundary: int, rank: int, size: int, *, whole: bool) -> None:
        """Begin to write this rank's part of `boundary`, which its live state is.

        `whole`: the rank has state of its own; else rank 0 writes the one copy of what all have. Only the copying of
        the tensors is waited for (and the part before, if it is not written yet).
        """
        began = time.monotonic_ns()
        self.settle()
        self._last = boundary
        listed = list(self._protected.tensors())
        state: dict[str, Any] = {}
        if whole or rank == 0:
            written = [*listed, *self._protected.buffers()]  # buffers for whoever reads it without this runtime
            state = {name_of(key): tensor.detach().to("cpu", copy=True) for key, tensor in written}
        head = {
            "small": self._protected.capture_small({}),
            "start": self._protected.capture_start(),
            "layouts": self._buckets.now(),
            "tensors": [(key, tensor.dtype, tuple(tensor.shape)) for key, tensor in listed],
        }
        state[HEAD] = pickle.dumps(head)  # bytes: a dictionary would be taken apart
        stall_ns = time.monotonic_ns() - began
        work = (boundary, rank, size, state, stall_ns)
        self._thread = threading.Thread(target=self._write, args=work, name="phoenix-checkpoint")
        self._thread.start()

    def read(self, boundary: int, rank: int, *, whole: bool) -> tuple[list[Layout], bytes, bytes]:
        """Read the state of `rank` at `boundary` into the live tensors; returns the buckets of its next step, what that
        begins with, and the small state. Raises CheckpointDamaged."""
        root = self._settings.directory
        own = checkpoint.read_part(root, boundary, rank)
        shared = own if whole else checkpoint.read_part(root, boundary, 0)
        for part in (own, shared):
            checkpoint.verify(root, part)
        head, described = (pickle.loads(_read(root, part, {HEAD: b""})[HEAD]) for part in (own, shared))
        try:
            targets = self._protected.targets_for(described["tensors"])
            self._protected.check_small(head["small"])
        except SnapshotUnavailable as error:
            where = checkpoint.step_directory(root, boundary)
            raise CheckpointDamaged(f"{where} is of another model or optimizer: {error}") from None
        names = [name_of(key) for key, _, _ in described["tensors"]]
        _read(root, shared, dict(zip(names, targets, strict=True)))
        self._last = boundary
        return head["layouts"], head["start"], head["small"]

    def settle(self) -> None:
        """Return once nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, boundary: int, rank: int, size: int, state: dict[str, Any], stall_ns: int) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        _expect_one_process()
        root, began = self._settings.directory, time.monotonic_ns()
        directory, error, moved = f"rank-{rank}.{self._worker}", "", 0
        try:
            writer = FileSystemWriter(checkpoint.step_directory(root, boundary) / directory)
            save(state, storage_writer=writer, no_dist=True)
            part = checkpoint.describe(root, boundary, rank, size, directory)
            moved = sum(length for length, _ in part.files.values())
            checkpoint.commit(root, part)
            if rank == 0:
                checkpoint.prune(root, self._settings.keep, boundary)
        except (Exception, CheckpointException) as failure:
            # A full disk, a lost mount: training goes on, and this step has no checkpoint.
            error = f"{_reason(failure)}{_room(root)}"
            with suppress(OSError):
                checkpoint.discard(root, boundary, rank, directory)
        duration_ns = time.monotonic_ns() - began
        self._on_written(
            Written(boundary=boundary, bytes=moved, stall_ns=stall_ns, duration_ns=duration_ns, error=error)
        )


def _read(root: Path, part: checkpoint.Part, wanted: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as read

    _expect_one_process()
    below = checkpoint.step_directory(root, part.boundary) / part.directory
    try:
        with torch.no_grad():
            read(wanted, storage_reader=FileSystemReader(below), no_dist=True)
    except CheckpointException as error:
        raise CheckpointDamaged(f"{below}: {_reason(error)}") from error
    return wanted


def _reason(error: BaseException) -> str:
    """What went wrong inside: torch wraps it with a traceback per rank."""
    failures = getattr(error, "failures", {})
    inner = next((cause for cause, _ in failures.values()), error)
    return f"{type(inner).__name__}: {inner}"


def _room(root: Path) -> str:
    """Torch speaks of a full disk in its own words."""
    with suppress(OSError):
        return f" ({shutil.disk_usage(root).free / 1e6:,.1f} MB are free in {root})"
    return ""


def _expect_one_process() -> None:
    """torch warns of `no_dist`, which is what is wanted here; a filter that is there already is not added again."""
    warnings.filterwarnings("ignore", message=".*assuming the intent is to (save|load) in a single process")


def name_of(key: Key) -> str:
    return "/".join(key)
