"""The inside of a process group in one generation: how it forms, and how its collectives end on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.worker import Worker

FORMING_TIMEOUT_S = 20.0
"""As in phoenix_core.formation."""
NOTICED_LATE_S = 10.0
"""By who does not use its connection when that is reset, or is in the middle of a transfer: later than a hang is."""


class Formation:
    """One rank's wait for the others of a generation."""

    def __init__(self) -> None:
        self.done = False
        self.failed = False


class Group:
    """All ranks' connections of one generation.

    A collective ends on a rank only after every rank has entered it, and on each rank at its own instant. Once a
    member is gone or has broken its sockets, what had not ended may still end (its data was under way) or not.
    """

    def __init__(self, cluster: Cluster, generation: int, size: int) -> None:
        self._cluster = cluster
        self.generation = generation
        self.size = size
        self.cut = False
        self._forming: dict[int, tuple[Worker, Formation]] = {}
        self._entered: list[dict[int, int]] = []
        self.results: dict[int, int] = {}
        self.full_at: dict[int, float] = {}
        self.members: dict[int, Worker] = {}

    # ---------------------------------------------------------------- forming

    def form(self, rank: int, worker: Worker) -> Formation:
        formation = Formation()
        self._forming[rank] = (worker, formation)
        self._cluster.clock.after(FORMING_TIMEOUT_S, self._give_up, worker, formation)
        if len(self._forming) == self.size and all(other.alive for other, _ in self._forming.values()):
            for rank_formed, (member, waiting) in self._forming.items():
                self.members[rank_formed] = member
                self._cluster.clock.after(self._cluster.rng.random() * 0.01, self._formed, member, waiting)
        return formation

    def _formed(self, worker: Worker, formation: Formation) -> None:
        self._cluster.once_reached(self._nodes, self._stands, worker, formation)

    @property
    def _nodes(self) -> list[str]:
        return [member.node for member in self.members.values()]

    @staticmethod
    def _stands(worker: Worker, formation: Formation) -> None:
        formation.done = True
        worker.poke()

    @staticmethod
    def _give_up(worker: Worker, formation: Formation) -> None:
        if not formation.done:
            formation.done = formation.failed = True
            worker.poke()

    # ---------------------------------------------------------------- collectives

    def enter(self, rank: int, index: int, value: int) -> None:
        while len(self._entered) <= index:
            self._entered.append({})
        entered = self._entered[index]
        entered[rank] = value
        if len(entered) == self.size:
            self.results[index], self.full_at[index] = sum(entered.values()), self._cluster.clock.now
            clock, rng = self._cluster.clock, self._cluster.rng
            # Mostly together; sometimes one rank is through long before another.
            spread = 0.2 if rng.random() < 0.15 else 0.005
            for member in self.members.values():
                clock.after(rng.random() * spread, self._ends, member, index)

    def _ends(self, member: Worker, index: int) -> None:
        if self.cut and self._cluster.rng.random() < 0.5:
            return
        self._cluster.once_reached(self._nodes, member.collective_ended, self, index)

    def reset(self, victim: Worker) -> None:
        self.cut = True
        rng = self._cluster.rng
        for member in self.members.values():
            late_s = NOTICED_LATE_S if member is not victim and rng.random() < 0.5 else 0.01
            self._cluster.clock.after(rng.random() * late_s, member.connection_broke, self)

    def break_off(self, by: Worker) -> None:
        """A member's sockets are shut down, or it died: its neighbours may see that, the others wait on."""
        self.cut = True
        for member in self.members.values():
            if member is not by and self._cluster.rng.random() < 0.5:
                self._cluster.clock.after(self._cluster.rng.random() * 0.01, member.connection_broke, self)
