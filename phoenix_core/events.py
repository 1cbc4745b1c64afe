"""What happened, as one JSON object per line, one file per process.

A record is written by a single `os.write` on an O_APPEND descriptor, so a SIGKILL loses none that
was reported and tears none. `at` is CLOCK_MONOTONIC in nanoseconds: one clock for all processes of
a host (and only of that host, hence `host` and `boot`).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from phoenix_core.advice import tell

KINDS: Final[Mapping[str, str]] = {
    # coordinator
    "coordinator_started": "its process serves; data: pid, start_ticks (identity of the pid)",
    "job_started": "the coordinator serves; data: world_size, spares, nodes",
    "world_formed": "a generation exists; data: ranks (worker per rank), spares, joining (ranks to be restored)",
    "failure_detected": "a worker is taken for failed; worker, rank, generation (that it ends in); data: cause, detail "
    "(device_error: also code, xids, action)",
    "nodes_cut_off": "others do not reach these nodes on the data network; data: nodes, waits (true: nobody can take "
    "over, so the job waits for the network)",
    "node_quarantined": "a node gets no worker any more; node; data: reason",
    "spare_assigned": "a spare got a rank; worker, rank, generation",
    "collective_broken": "a connection broke, nobody failed: all meet anew; worker, rank, generation; data: reason",
    "restore_failed": "what the plan promised was damaged; worker, rank, generation; data: reason",
    "generation_resumed": "every rank is restored; step = the first step to execute",
    "spare_parked": "a worker is warm and waits for a rank; worker, node",
    "spares_given_up": "spares fail again and again: for now none is started that no rank needs; data: reason",
    "standstill_noticed": "no rank has moved, and none waits for another: nobody is blamed; data: seconds",
    "straggler_suspected": "a rank is slow; worker, rank; data: waiting_s (all others waited for it), of_s",
    "coordinator_restarted": "another coordinator leads; generation (that it begins where recovering, else that goes "
    "on); data: recovering (a recovery was broken off), ranks, spares (that live)",
    "job_finished": "the job ended; data: outcome (completed|failed|stopped), reason",
    # agent
    "agent_started": "a node's agent serves; node; data: pid, start_ticks (identity of the pid)",
    "worker_spawned": "a process was started; worker, node; data: pid, start_ticks (identity of the pid)",
    "worker_seated": "a worker has a rank; worker, node; data: local_rank (which GPU of its node it uses)",
    "worker_exited": "a process ended; worker, node; data: pid, code (negative: signal)",
    "gpus_watched": "the node's GPUs are watched; node; data: gpus (UUIDs), used (indices), log (path, or empty), deaf "
    "(why NVML tells no Xids, or empty)",
    "xid_seen": "an Xid of a GPU was seen; node; data: xid, source (nvml|state|log), gpu (index), pci, words, action, "
    "told (whether the coordinator was told, to act)",
    "gpu_monitor_blocked": "a call of NVML does not come back; node; data: call (start|events|state), seconds",
    "gpu_monitor_answered": "it has come back; node; data: call, seconds",
    # worker
    "phase_entered": "a training phase began; step; data: phase (forward|backward|gradient_sync|optimizer|"
    "snapshot_copy|replica_send)",
    "step_committed": "an optimizer step is in the live state; step; data: duration_ns, recorded values (loss); where "
    "ranks keep whole snapshots: stall_ns, copied_bytes, sent_bytes",
    "worker_quiesced": "a survivor is out of the broken step; generation (the new one); data: boundary it can offer",
    "model_built": "a spare has built its model for its rank; generation, rank",
    "communicator_ready": "the rank's groups of this generation work; data: groups, kept, built [group, kept, seconds]",
    "state_restored": "the rank is at the plan's boundary; data: boundary, source (or disk), bytes, aside or seconds",
    "memory_reported": "what snapshots take of a rank's host memory has changed; step; data: own_bytes and held_bytes "
    "(now), own_most and held_most (so far), held_of (ranks whose snapshots it holds)",
    "checkpoint_written": "a rank's part is on disk; step; data: bytes, stall_ns, duration_ns, error (else empty)",
    "state_digest": "SHA-256 at the script's request; data: digest (parameters and "
    "optimizer), buffers, sharded (whether ranks hold different parts)",
    "script_failed": "the training script raised; data: error",
    "device_failed": "the training script met an error of its device; data: error, code, xids, action",
    # injector (chaos)
    "fault_injected": "a fault was applied; worker, rank; data: fault, kind, pid, fidelity (real|emulated), ...",
    "fault_missed": "a fault could not be applied; data: fault, kind, reason",
    "fault_reverted": "a lasting fault was taken back; data: fault, kind",
    "request_taken": "a live request came; data: request (fault|revert|cancel|halt|release|refused), reason, ...",
    "trial_phase": "the trial went on to its next part; data: part",
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened; past tense, stamped, never changed."""

    kind: str
    at: int
    host: str = ""
    boot: str = ""
    node: str | None = None
    worker: str | None = None
    generation: int | None = None
    rank: int | None = None
    step: int | None = None
    data: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        record = {k: v for k, v in self.__dict__.items() if v is not None and v != {} and k != "data"}
        if self.data:
            record["data"] = dict(self.data)
        return json.dumps(record, separators=(",", ":"))

    @staticmethod
    def from_json(line: str | bytes) -> Event:
        """Raises ValueError for a line that is not an event (a torn last line, a foreign file)."""
        record = json.loads(line)
        if not isinstance(record, dict) or "kind" not in record or "at" not in record:
            raise ValueError(f"not an event: {line[:80]!r}")
        return Event(**record)


@cache
def boot_id() -> str:
    """Names the boot whose monotonic clock the events carry."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class EventWriter:
    """Appends the events of one process; safe to call from any thread."""

    def __init__(self, path: Path | None, *, forgiving: bool = False, **fixed: str | int | None) -> None:
        """`fixed` fields (node, worker, ...) go into every event; `path` None drops all.

        `forgiving`: a record that cannot be written (a full disk) is lost with one word on standard error, since a
        training job must not end for it. Otherwise it raises OSError, since a receipt must not be lost.
        """
        self._forgiving = forgiving
        self._fixed = fixed
        self._fd = -1
        self._lossy = False
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            except OSError as error:
                if not forgiving:
                    raise
                self._lose(error)

    def emit(self, kind: str, /, *, at: int | None = None, **fields: object) -> Event:
        """Write one event. Fields that Event does not name go into `data`."""
        assert kind in KINDS, f"unknown event kind {kind}"
        named: dict[str, object] = dict(self._fixed)
        data: dict[str, object] = {}
        for key, value in fields.items():
            (named if key in ("node", "worker", "generation", "rank", "step") else data)[key] = value
        event = Event(
            kind=kind,
            at=time.monotonic_ns() if at is None else at,
            host=socket.gethostname(),
            boot=boot_id(),
            data=data,
            **named,  # type: ignore[arg-type]
        )
        if self._fd >= 0:
            try:
                os.write(self._fd, event.to_json().encode() + b"\n")
            except OSError as error:
                if not self._forgiving:
                    raise
                self._lose(error)
        return event

    def _lose(self, error: OSError) -> None:
        if not self._lossy:
            self._lossy = True
            tell(f"phoenix: events are being lost: {error.strerror}")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class EventTail:
    """Reads what was appended to the `*.jsonl` files of a directory since the last call."""

    def __init__(self, directory: Path, offsets: Mapping[str, int] | None = None) -> None:
        self.directory = directory
        self.offsets: dict[str, int] = dict(offsets or {})

    def read(self) -> list[Event]:
        """New complete lines of all files, ordered by `at`; an unfinished last line stays for later."""
        events: list[Event] = []
        for path in sorted(self.directory.glob("*.jsonl")):
            if not path.is_file():
                continue  # a device, which may never end
            start = self.offsets.get(path.name, 0)
            with path.open("rb") as file:
                file.seek(start)
                block = file.read()
            end = block.rfind(b"\n") + 1
            self.offsets[path.name] = start + end
            events += _parse(block[:end].splitlines())
        return sorted(events, key=lambda event: event.at)


def read_events(directory: Path) -> list[Event]:
    """All events of a directory, ordered by `at`."""
    return EventTail(directory).read()


def _parse(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        try:
            yield Event.from_json(line)
        except (ValueError, TypeError):
            continue  # a full disk can cut a record; the records after it are still good
