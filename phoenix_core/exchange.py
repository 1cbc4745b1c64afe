"""State that moves between ranks in a recovery: what this one serves while it rests, what it fetches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from phoenix_core import ddp, wholestate
from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.inbox import Call, Plan
from phoenix_core.kept import KeptStates, Ledger, Payload
from phoenix_core.snapshot import Protected
from phoenix_core.transport import PeerClient, PeerServer
from phoenix_core.twins import Sums

T = TypeVar("T")
TWIN_LIMIT_S: Final = 20.0
"""How long a twin's own snapshot is waited for before its peer is told to ask again; below the peer's own timeout."""


def _anywhere(size: int) -> memoryview:
    return memoryview(bytearray(size))


class Exchange:
    """One per worker. Serving happens in threads of the server, fetching in the training thread."""

    def __init__(self, protected: Protected, address: str, token: str) -> None:
        self._protected = protected
        self._token = token
        self._resting: tuple[int, int] | None = None
        self._layouts: list[ddp.Layout] = []
        self._start = b""
        self._ledger = Ledger()
        self._fetching: PeerClient | None = None
        self.sums = Sums()
        """Over the tensors of this rank's own snapshots, as its gate tells them."""
        self.tensors_at: Callable[[int, str], tuple[bytes, memoryview]] | None = None
        self._server = PeerServer(address, token, self._serve_live, twin=self)

    @property
    def address(self) -> tuple[str, int]:
        return self._server.address

    def holdings(self) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
        """What this worker can offer as a holder: boundaries by owner, of states and of those without their tensors."""
        states, bare = self.held_states
        return states.boundaries(), bare.boundaries()

    @property
    def held_states(self) -> tuple[KeptStates, KeptStates]:
        return self._server.held, self._server.held_bare

    def agrees(self, boundary: int, sum_: str) -> bool:
        return self.sums.agree(boundary, sum_, TWIN_LIMIT_S)

    def tensors(self, boundary: int, sum_: str) -> tuple[bytes, memoryview]:
        if self.tensors_at is None:
            raise SnapshotUnavailable("this worker has no snapshots yet")
        return self.tensors_at(boundary, sum_)

    def rest(self, generation: int, boundary: int, layouts: list[ddp.Layout], start: bytes) -> None:
        """The live state is that of `boundary` and stays so until `rise`: peers may have it."""
        self._layouts, self._start = layouts, start
        self._resting = (generation, boundary)

    def rise(self) -> None:
        self._resting = None

    def _serve_live(self, generation: int, boundary: int) -> tuple[bytes, Iterable[memoryview]]:
        if self._resting != (generation, boundary):
            raise SnapshotUnavailable(f"this rank does not rest at step {boundary} of generation {generation}")
        return self._protected.describe(self._layouts, self._start)

    def own(self) -> tuple[list[ddp.Layout], bytes]:
        """What this rank itself rests with: the buckets of the next step, and what it begins with."""
        return self._layouts, self._start

    def fetch_live(self, call: Call, rank: int, boundary: int) -> tuple[list[ddp.Layout], bytes, int]:
        """Fetch a twin's live state into the protected tensors; as `own`, and the bytes moved.

        Raises PeerLost or SnapshotUnavailable; the tensors are then of no boundary at all.
        """
        described = b""

        def place(description: bytes) -> Iterable[memoryview]:
            nonlocal described
            described = description
            return self._protected.place(description)[1]

        moved = self._from(call, rank, lambda peer: peer.live(call.generation, boundary, place))
        description = pickle.loads(described)
        return description["layouts"], description["start"], moved

    def kept_of(self, call: Call, plan: Plan, rank: int, own: KeptStates, limit: int, *, whole: bool) -> Payload:
        """What was kept of this rank at the plan's boundary: among its `own` states, or fetched into a room there.

        `whole`: it has the tensors too, and the plan's twin gives them where the holder has none. Raises PeerLost or
        SnapshotUnavailable.
        """
        boundary = plan.boundary
        if plan.small is None:
            return own.get(rank, boundary)

        def room(size: int) -> memoryview:
            return own.room(rank, boundary, size, limit)

        if plan.tensors is None or not whole:
            return self._from(call, plan.small, lambda peer: peer.small(rank, boundary, room))
        bare = self._from(call, plan.small, lambda peer: peer.small(rank, boundary, _anywhere, bare=True))
        return self._with_tensors(call, plan.tensors, boundary, wholestate.parse(bare).head, room)

    def _with_tensors(
        self, call: Call, twin: int, boundary: int, head: wholestate.Head, room: Callable[[int], memoryview]
    ) -> Payload:
        """What was kept of this rank without its tensors, with those of a twin."""
        whole = memoryview(b"")

        def place(description: bytes) -> memoryview:
            nonlocal whole
            whole, part = wholestate.rejoined(head, pickle.loads(description), room)
            return part

        self._from(call, twin, lambda peer: peer.tensors(boundary, head.shared_sum, place))
        return whole

    def taken(self, own: KeptStates) -> dict[str, Any] | None:
        """Fields of the event `memory_reported`, where there is news."""
        return self._ledger.changed(own, *self.held_states)

    def _from(self, call: Call, rank: int, ask: Callable[[PeerClient], T]) -> T:
        self._fetching = peer = PeerClient(call.peers[rank], self._token)
        try:
            return ask(peer)
        finally:
            self._fetching = None
            peer.close()

    def interrupt(self) -> None:
        """From another thread: end a transfer that a newer generation has made void."""
        if (fetching := self._fetching) is not None:
            fetching.interrupt()

    def close(self) -> None:
        self._server.close()
