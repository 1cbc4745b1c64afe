"""Every number and address that the runtime reads from its environment, in one typed value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phoenix_core.errors import UsageError

REPLICA_BANDWIDTH: Final = "PHOENIX_REPLICA_BANDWIDTH"
"""The variable that tells workers the limit, in bytes per second."""


@dataclass(frozen=True, kw_only=True)
class Detection:
    """When a silent worker is taken for failed. Seconds; defaults for one machine or a local network.

    Without a heartbeat for `silent_s` while its threads seldom want to run, a worker is hung; one whose threads do want
    to run may only be starved of processor time, and has `starved_s`. The hang timeout adapts: `hang_factor` median
    steps, but at least `hang_floor_s`; that is above `silent_s`, lest an owner be blamed for its silent holder. Between
    two steps a rank may take `between_steps_s`: it saves a checkpoint or evaluates while the others wait. Of a node and
    its coordinator each takes the other for lost that it has not heard for `lease_s`.
    """

    heartbeat_s: float = 0.1
    stopped_s: float = 0.2
    silent_s: float = 2.0
    starved_s: float = 15.0
    hang_floor_s: float = 3.0
    hang_factor: float = 10.0
    between_steps_s: float = 300.0
    first_step_s: float = 300.0
    lease_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.silent_s:
            raise UsageError(f"heartbeat_s {self.heartbeat_s} must be positive and below silent_s {self.silent_s}")
        if not self.silent_s < self.hang_floor_s <= self.between_steps_s:
            raise UsageError(
                f"hang_floor_s {self.hang_floor_s} must be above silent_s {self.silent_s}, not above between_steps_s "
                f"{self.between_steps_s}"
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Where checkpoints go, every how many steps, and how many complete ones are kept."""

    directory: Path
    every: int
    keep: int

    def to_environment(self) -> dict[str, str]:
        return {"PHOENIX_CHECKPOINT": f"{self.every}:{self.keep}:{self.directory}"}

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> CheckpointSettings | None:
        text = environment.get("PHOENIX_CHECKPOINT", "")
        if not text:
            return None
        every, keep, directory = text.split(":", 2)
        return CheckpointSettings(directory=Path(directory), every=int(every), keep=int(keep))


def for_script(rank: int, local_rank: int, nodes: Sequence[str]) -> dict[str, str]:
    """torchrun's variables of a rank; `nodes[r]` is the node of rank r."""
    group = list(dict.fromkeys(nodes)).index(nodes[rank])
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(len(nodes)), "GROUP_RANK": str(group)}


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What a worker process gets from its agent (all absent: the script runs alone, as one rank)."""

    worker: str
    node: str
    control_fd: int
    tripwire_fd: int
    store: tuple[str, int]
    token: str
    events: Path | None
    address: str
    heartbeat_s: float
    checkpoint: CheckpointSettings | None
    replica_bandwidth: float | None
    """Bytes per second that this worker sends to holders at most; None for no limit."""

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> WorkerSettings | None:
        """None outside of `phoenix run`. Raises UsageError under torchrun, whose ranks would train each for itself."""
        if "PHOENIX_WORKER" not in environment:
            if "TORCHELASTIC_RUN_ID" in environment and environment.get("WORLD_SIZE", "1") != "1":
                raise UsageError("this script opens phoenix.session(): start it with `phoenix run`, not with torchrun")
            return None
        host, port = environment["PHOENIX_STORE"].rsplit(":", 1)
        run_dir = environment.get("PHOENIX_RUN_DIR")
        worker = environment["PHOENIX_WORKER"]
        return WorkerSettings(
            worker=worker,
            node=environment["PHOENIX_NODE"],
            control_fd=int(environment["PHOENIX_CONTROL_FD"]),
            tripwire_fd=int(environment["PHOENIX_TRIPWIRE_FD"]),
            store=(host, int(port)),
            token=environment["PHOENIX_TOKEN"],
            events=Path(run_dir) / "events" / f"{worker}.jsonl" if run_dir else None,
            address=environment["PHOENIX_ADDRESS"],
            heartbeat_s=float(environment["PHOENIX_HEARTBEAT_S"]),
            checkpoint=CheckpointSettings.from_environment(environment),
            replica_bandwidth=float(environment.get(REPLICA_BANDWIDTH, 0)) or None,
        )
