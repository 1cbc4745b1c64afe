"""What a rank keeps of its state, here and at its holder: as phoenix_core's gate and shards do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phoenix_core.inbox import Call, Plan
from phoenix_core.kept import KEPT_BOUNDARIES, KeptStates
from phoenix_core.placement import holder_of
from tests.simulation.peers import Replicator, ask

if TYPE_CHECKING:
    from tests.simulation.process import Thread
    from tests.simulation.worker import Worker


def packed(small: int, tensors: int = 0) -> bytes:
    return b"%d %d" % (small, tensors)


class Gate:
    """Tensors have live twins; the small state of the coming boundary is kept during a step."""

    whole = False
    kept = KEPT_BOUNDARIES

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.own = KeptStates()
        self.holder: int | None = None
        self.replicator: Replicator | None = None

    def open(self, call: Call) -> None:
        self.holder = holder = holder_of(self.worker.rank, call.nodes)
        self.replicator = Replicator(self.worker, None if holder is None else str(call.peers[holder][0]), self.kept)

    def keep(self, boundary: int, payload: bytes) -> None:
        assert self.replicator is not None
        self.own.put(self.worker.rank, boundary, payload, self.kept)
        self.replicator.send(boundary, payload)

    def wait_safe(self, boundary: int) -> Thread[None]:
        replicator = self.replicator
        assert replicator is not None
        if replicator.acked < boundary:
            self.worker.awaits = self.holder
            try:
                yield from self.worker.wait(lambda: replicator.acked >= boundary or None, self.worker.generation)
            finally:
                self.worker.awaits = None

    def begin_loop(self) -> Thread[None]:
        self.keep(0, packed(self.worker.small))
        yield from self.wait_safe(0)

    def begin_step(self, boundary: int) -> None:
        """The step from `boundary` on begins."""

    def capture(self) -> None:
        """The first gradients are ready."""
        self.keep(self.worker.boundary + 1, packed(self.worker.small))

    def needed(self) -> int:
        """The boundary that must be safe before this step's optimizer may run."""
        return self.worker.boundary + 1

    def copied(self) -> Thread[None]:
        """Until parameters may change without spoiling a copy."""
        yield from ()

    def fetch(self, call: Call, plan: Plan) -> Thread[tuple[int, int]]:
        """The tensors from a twin, then this rank's small state, each unless it is here.

        Returns the small state and the tensors: until all has come, the rank keeps what it has.
        """
        worker = self.worker
        tensors = worker.tensors
        if plan.tensors is not None:
            twin = str(call.peers[plan.tensors][0])
            wanted = (call.generation, plan.boundary)
            tensors = yield from ask(worker, twin, lambda peer: peer.serve_live(wanted), live=True)
        return int((yield from self._kept_of(call, plan)).split()[0]), tensors

    def _kept_of(self, call: Call, plan: Plan) -> Thread[bytes]:
        rank, boundary = self.worker.rank, plan.boundary
        if plan.small is None:
            return bytes(self.own.get(rank, boundary))
        holder = str(call.peers[plan.small][0])
        return (yield from ask(self.worker, holder, lambda peer: bytes(peer.held.get(rank, boundary)), live=False))

    def make_safe(self, boundary: int) -> Thread[None]:
        """Give the new holder the state that this rank resumes with."""
        self.keep(boundary, packed(self.worker.small))
        yield from self.wait_safe(boundary)

    def resumed(self, call: Call) -> None:
        """All ranks go on: what ranks left here that have another holder now is not needed."""
        rank, nodes = self.worker.rank, call.nodes
        self.worker.held.keep_only([owner for owner in range(len(nodes)) if holder_of(owner, nodes) == rank])


class ShardGate(Gate):
    """Nobody else has a rank's tensors: the whole state of a boundary is copied while the step from it on lasts."""

    whole = True
    kept = 2

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._boundary = -1
        self._copying = False

    def _snapshot(self, boundary: int) -> None:
        worker, clock = self.worker, self.worker.cluster.clock
        self._boundary, self._copying = boundary, True
        takes = worker.cluster.plan.copy_s * (0.2 + 0.8 * worker.cluster.rng.random())
        clock.after(takes, worker.run, self._written, boundary, worker.small, worker.tensors)

    def _written(self, boundary: int, small: int, tensors: int) -> None:
        """The copy is made from tensors in use: it is torn where they have changed meanwhile."""
        now = self.worker.tensors
        self._copying = False
        self.keep(boundary, packed(small, tensors if now == tensors else hash((now, tensors))))
        self.worker.poke()

    def copied(self) -> Thread[None]:
        if self._copying:
            yield from self.worker.wait(lambda: None if self._copying else True, None)

    def begin_loop(self) -> Thread[None]:
        self._snapshot(0)
        yield from self.wait_safe(0)

    def begin_step(self, boundary: int) -> None:
        if self._boundary != boundary:
            self._snapshot(boundary)

    def capture(self) -> None:
        pass

    def needed(self) -> int:
        return self.worker.boundary

    def fetch(self, call: Call, plan: Plan) -> Thread[tuple[int, int]]:
        """The whole state, from here or from the holder, unless the live state is that of the plan's boundary."""
        worker = self.worker
        yield from self.settle()
        if worker.live == plan.boundary:
            mine = plan.boundary in self.own.boundaries().get(worker.rank, ())
            small = int(bytes(self.own.get(worker.rank, plan.boundary)).split()[0]) if mine else worker.small
            return small, worker.tensors
        small, tensors = map(int, (yield from self._kept_of(call, plan)).split())
        return small, tensors

    def settle(self) -> Thread[None]:
        """Before a rank is taken back, what still reads its tensors must be done."""
        yield from self.copied()

    def make_safe(self, boundary: int) -> Thread[None]:
        yield from self.copied()
        self._boundary = boundary
        self.keep(boundary, packed(self.worker.small, self.worker.tensors))
        yield from self.wait_safe(boundary)
