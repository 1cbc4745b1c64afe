"""Which nodes get no worker any more: because of their GPUs, or since the others do not reach them.

Of nodes, not of single GPUs: a script chooses its GPU by LOCAL_RANK, so a worker that takes the place of the dead one
on the same node gets the same GPU. The ranks that still train there go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Final

from phoenix_core.protocol import DeviceFailed, GpuFailed, Kill, Record
from phoenix_core.roster import Member, State
from phoenix_core.xids import Action

ERRORS_A_NODE: Final = 3
"""Device errors in the life of a job after which a node is left alone, however harmless each looked."""


class Quarantine:
    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.errors: Counter[str] = Counter()

    def struck(
        self, event: DeviceFailed | GpuFailed, members: Mapping[str, Member], ranked: Container[str]
    ) -> tuple[list[str], list[Record | Kill]]:
        """The workers that an error of a device takes out, and what follows for their node.

        Where that quarantines the node, those of its workers that are not `ranked` are ended: none may get a rank. A
        rank that has not failed by itself goes on where nobody could take over from it.
        """
        hit = [members[worker] for worker in event.workers if worker in members and members[worker].alive]
        node = hit[0].node if hit else event.of_node
        if not node:
            return [], []
        self.errors[node] += 1
        others = [member for member in members.values() if member.worker not in event.workers]
        why = self._reason(node, event.action)
        fenced = self.fence(node, why, others, ranked) if why else []
        alone = node in self.nodes and not any(other.alive and other.worker not in ranked for other in others)
        return [] if alone and isinstance(event, GpuFailed) else [member.worker for member in hit], fenced

    def fence(self, node: str, why: str, members: Iterable[Member], ranked: Container[str]) -> list[Record | Kill]:
        """No worker of `node` may get a rank any more; does nothing where that was so before."""
        if node in self.nodes:
            return []
        self.nodes.add(node)
        idle = [member for member in members if member.node == node and member.alive and member.worker not in ranked]
        for member in idle:
            member.state = State.FAILED
        told = Record(kind="node_quarantined", fields={"node": node, "reason": why})
        return [told, *(Kill(worker=member.worker) for member in idle)]

    def _reason(self, node: str, action: Action) -> str:
        if action in (Action.QUARANTINE_GPU, Action.QUARANTINE_NODE):
            return "a GPU of it needs a reset" if action is Action.QUARANTINE_GPU else "it needs a restart"
        errors = self.errors[node]
        return f"{errors} device errors in this job" if errors >= ERRORS_A_NODE else ""
