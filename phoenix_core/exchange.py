"""State that moves between ranks in a recovery: what this one serves while it rests, what it fetches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from phoenix_core import ddp
from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.inbox import Call, Plan
from phoenix_core.kept import KeptStates, Ledger, Payload
from phoenix_core.snapshot import Protected
from phoenix_core.transport import PeerClient, PeerServer

T = TypeVar("T")


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
        self._server = PeerServer(address, token, self._serve_live)

    @property
    def address(self) -> tuple[str, int]:
        return self._server.address

    @property
    def held(self) -> dict[int, tuple[int, ...]]:
        """Boundaries of the small states that this worker holds, by owner."""
        return self._server.held.boundaries()

    @property
    def held_states(self) -> KeptStates:
        return self._server.held

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

    def kept_of(self, call: Call, plan: Plan, rank: int, own: KeptStates, limit: int) -> Payload:
        """What was kept of this rank at the plan's boundary: among its `own` states, or fetched into a room there.

        Raises PeerLost or SnapshotUnavailable.
        """
        boundary = plan.boundary
        if plan.small is None:
            return own.get(rank, boundary)

        def room(size: int) -> memoryview:
            return own.room(rank, boundary, size, limit)

        return self._from(call, plan.small, lambda peer: peer.small(rank, boundary, room))

    def taken(self, own: KeptStates) -> dict[str, Any] | None:
        """Fields of the event `memory_reported`, where there is news."""
        return self._ledger.changed(own, self.held_states)

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
