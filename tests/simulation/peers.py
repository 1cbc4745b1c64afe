"""The state between workers: what a rank asks of a peer, and the small states on their way to a holder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from phoenix_core.errors import PeerLost, PhoenixError, SnapshotUnavailable
from phoenix_core.transport import TIMEOUT_S
from tests.simulation.engine import Link

T = TypeVar("T")
RETRY_S = 0.05
"""As in phoenix_core.replicator."""

if TYPE_CHECKING:
    from tests.simulation.process import Thread
    from tests.simulation.worker import Worker


class Replicator:
    """One rank's connection to its holder in one generation; as in phoenix_core.replicator."""

    def __init__(self, owner: Worker, holder: str | None, kept: int) -> None:
        self.acked = -1
        self._kept = kept
        self.owner, self._holder, self._rank = owner, holder, owner.rank
        self._unconfirmed: dict[int, bytes] = {}
        self._connect()

    def _connect(self) -> None:
        cluster = self.owner.cluster
        self._out = Link(cluster.clock, cluster.rng, cluster.delay_s)
        self._back = Link(cluster.clock, cluster.rng, cluster.delay_s)
        if self.owner.alive:
            for boundary, payload in self._unconfirmed.items():
                self._put(boundary, payload)

    def send(self, boundary: int, payload: bytes, sum_: str = "") -> None:
        if self._holder is None:
            self.acked = boundary
        else:
            self._unconfirmed[boundary] = payload
            self._put(boundary, payload)

    def _put(self, boundary: int, payload: bytes) -> None:
        assert self._holder is not None
        holder = self.owner.cluster.workers[self._holder]
        nodes, arrived = (self.owner.node, holder.node), (self._store, holder, boundary, payload, self._back)
        self._out.send(self.owner.cluster.once_reached, nodes, holder.run, *arrived)

    def _store(self, holder: Worker, boundary: int, payload: bytes, back: Link) -> None:
        holder.held.put(self._rank, boundary, payload, self._kept)
        nodes = (self.owner.node, holder.node)
        back.send(self.owner.cluster.once_reached, nodes, self.owner.run, self._confirmed, boundary)

    def _confirmed(self, boundary: int) -> None:
        self._unconfirmed.pop(boundary, None)
        self.acked = max(self.acked, boundary)
        self.owner.poke()

    def break_connection(self) -> None:
        """What was under way is sent again over a new one, so that the holder may get it twice."""
        self._out.cut()
        self._back.cut()
        self.owner.cluster.clock.after(RETRY_S, self._connect)


class Answer(Generic[T]):
    """What a peer answers, once it has."""

    def __init__(self, asker: Worker) -> None:
        self.value: T | None = None
        self.error: PhoenixError | None = None
        self._asker = asker

    def finish(self, result: T | PhoenixError) -> None:
        if isinstance(result, PhoenixError):
            self.error = self.error or result
        elif self.value is None:
            self.value = result
        self._asker.poke()

    def outcome(self) -> T | None:
        if self.value is None and self.error is not None:
            raise self.error
        return self.value


def ask(worker: Worker, name: str, question: Callable[[Worker], T], *, live: bool) -> Thread[T]:
    """A question to a peer's server. Raises what the peer answers, PeerLost where it dies before the end.

    A `live` answer is streamed from tensors in use: it is torn where they change meanwhile.
    """
    clock, rng, delay_s = worker.cluster.clock, worker.cluster.rng, worker.cluster.delay_s
    peer = worker.cluster.workers[name]
    answer: Answer[T] = Answer(worker)

    def arrive() -> None:
        if not peer.alive:
            answer.finish(PeerLost(f"no peer answers as {name}"))
            return
        peer.clients.append(lambda: answer.finish(PeerLost(f"{name} died before it had answered")))
        peer.run(reply)

    def reply() -> None:
        try:
            value = question(peer)
        except SnapshotUnavailable as error:
            clock.after(rng.random() * delay_s, answer.finish, error)
            return
        nodes = (worker.node, peer.node)
        clock.after(rng.random() * delay_s * 3, worker.cluster.once_reached, nodes, peer.run, sent, value)

    def sent(value: T) -> None:
        torn = live and peer.tensors != value
        answer.finish(cast("T", hash((value, peer.tensors))) if torn else value)

    clock.after(rng.random() * delay_s, worker.cluster.once_reached, (worker.node, peer.node), arrive)
    clock.after(TIMEOUT_S, answer.finish, PeerLost(f"{name} does not answer"))
    worker.fetching = answer
    try:
        return (yield from worker.wait(answer.outcome, None))
    finally:
        worker.fetching = None
