"""The seam between the trial and the ways to break things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from chaos.faults import Injection, Json, PlannedFault
from chaos.kinds import FaultKind
from chaos.roster import WorkerInfo


@dataclass(frozen=True, kw_only=True)
class Reverted:
    """How a lasting fault ended: `alive` tells whether there was something to take back, and that it was.

    `proof` is what was seen of that, for a fault that shows on nobody's process.
    """

    alive: bool
    proof: Json = field(default_factory=dict)


def receipt(fault: PlannedFault, kind: FaultKind, worker: WorkerInfo, at: int, proof: Json | None = None) -> Injection:
    """Of a fault that was applied to `worker` at `at` (monotonic ns, taken before the act)."""
    return Injection(
        fault=fault.id,
        kind=kind.kind,
        at=at,
        worker=worker.worker,
        rank=worker.rank,
        node=worker.node,
        pid=worker.pid,
        fidelity=kind.fidelity,
        trigger=fault.trigger.to_json(),
        params=fault.params,
        proof=proof or {},
    )


class Active(Protocol):
    """An applied fault. It may hold descriptors until `revert` or `close`; both may be called more than once."""

    @property
    def injection(self) -> Injection: ...

    @property
    def ttl_s(self) -> float | None:
        """Seconds after which the trial must revert it; None for a fault that is over when applied."""

    @property
    def over(self) -> str:
        """Why it has ended by itself; empty while it lasts. `revert` then tells what was seen of the end."""

    def revert(self) -> Reverted:
        """Take it back, as far as there is something left to take back. Does not fail if the target has ended."""

    def close(self) -> None:
        """Give up descriptors without touching the target."""


@runtime_checkable
class Pending(Protocol):
    """A fault that its target has been told of, and that waits for its instant there (the next backward pass, say)."""

    def poll(self) -> Active | None:
        """What it became, once it has happened; None until then. Raises TargetGone, as `inject`, where it cannot."""

    def withdraw(self) -> Active | None:
        """It shall not happen any more: what it became, where it did all the same, else None. Raises nothing."""


class Injector(Protocol):
    """All of what a kind of fault must do; the trial calls it from one thread, and never for a target not its own."""

    @property
    def kind(self) -> FaultKind: ...

    def inject(self, fault: PlannedFault, worker: WorkerInfo) -> Active | Pending:
        """Apply the fault to this process, and to it only.

        The receipt's `at` is taken immediately before the act. Raises TargetGone, having done nothing, if the
        process has ended or the pid belongs to another by now.
        """
