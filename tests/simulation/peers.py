"""The state between workers: what a rank asks of a peer, and the small states on their way to a holder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from phoenix_core.errors import PeerLost, PhoenixError, SnapshotUnavailable
from phoenix_core.transport import TIMEOUT_S
from tests.simulation.engine import Link

if TYPE_CHECKING:
    from tests.simulation.worker import Thread, Worker


class Replicator:
    """One rank's connection to its holder in one generation; as in phoenix_core.replicator."""

    def __init__(self, owner: Worker, holder: str | None) -> None:
        self.acked = -1
        self.owner, self._holder, self._rank = owner, holder, owner.rank
        cluster = owner.cluster
        self._out = Link(cluster.clock, cluster.rng, cluster.delay_s)
        self._back = Link(cluster.clock, cluster.rng, cluster.delay_s)
        cluster.replicators.append(self)

    def send(self, boundary: int, payload: bytes) -> None:
        if self._holder is None:
            self.acked = boundary
        else:
            holder = self.owner.cluster.workers[self._holder]
            self._out.send(holder.run, self._store, holder, boundary, payload)

    def _store(self, holder: Worker, boundary: int, payload: bytes) -> None:
        holder.held.put(self._rank, boundary, payload)
        self._back.send(self.owner.run, self._confirmed, boundary)

    def _confirmed(self, boundary: int) -> None:
        self.acked = max(self.acked, boundary)
        self.owner.poke()

    def cut(self) -> None:
        self._out.cut()
        self._back.cut()


class _Answer:
    def __init__(self, asker: Worker) -> None:
        self.value: int | None = None
        self.error: PhoenixError | None = None
        self._asker = asker

    def finish(self, result: int | PhoenixError) -> None:
        if isinstance(result, PhoenixError):
            self.error = self.error or result
        elif self.value is None:
            self.value = result
        self._asker.poke()

    def outcome(self) -> int | None:
        if self.value is None and self.error is not None:
            raise self.error
        return self.value


def ask(worker: Worker, name: str, question: Callable[[Worker], int], *, live: bool) -> Thread[int]:
    """A question to a peer's server. Raises what the peer answers, PeerLost where it dies before the end.

    A `live` answer is streamed from tensors in use: it is torn where they change meanwhile.
    """
    clock, rng, delay_s = worker.cluster.clock, worker.cluster.rng, worker.cluster.delay_s
    peer, answer = worker.cluster.workers[name], _Answer(worker)

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
        clock.after(rng.random() * delay_s * 3, peer.run, sent, value)

    def sent(value: int) -> None:
        torn = live and peer.tensors != value
        answer.finish(hash((value, peer.tensors)) if torn else value)

    clock.after(rng.random() * delay_s, arrive)
    clock.after(TIMEOUT_S, answer.finish, PeerLost(f"{name} does not answer"))
    return (yield from worker.wait(answer.outcome, None))
