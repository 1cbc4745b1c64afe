"""State that moves between ranks in a recovery: what this one serves while it rests, what it fetches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

import numpy

from phoenix_core import ddp, wholestate
from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.inbox import Call, Plan
from phoenix_core.kept import KeptStates, Ledger, Payload
from phoenix_core.late import Told
from phoenix_core.packing import fill
from phoenix_core.snapshot import Protected
from phoenix_core.transport import PeerClient, PeerServer
from phoenix_core.twins import Sums

T = TypeVar("T")
TWIN_LIMIT_S: Final = 20.0
"""How long a twin's own snapshot is waited for before its peer is told to ask again; below the peer's own timeout."""


def _anywhere(size: int) -> memoryview:
    return memoryview(cast("Any", numpy.empty(size, dtype=numpy.uint8)))


class Exchange:
    """One per worker. Serving happens in threads of the server, fetching in the training thread."""

    def __init__(self, protected: Protected, address: str, token: str) -> None:
        self._protected = protected
        self._token = token
        self._resting: tuple[int, int] | None = None
        self._layouts: list[ddp.Layout] = []
        self._start = b""
        self._told = Told()
        self._aside: tuple[list[wholestate.Listed], memoryview] | None = None
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

    def rest(self, generation: int, boundary: int, layouts: list[ddp.Layout], start: bytes, told: Told) -> None:
        """The live state is that of `boundary` and stays so until `rise`: peers may have it."""
        self._layouts, self._start, self._told, self._aside = layouts, start, told, None
        self._resting = (generation, boundary)

    def rise(self) -> None:
        self._resting = None

    def _serve_live(self, generation: int, boundary: int) -> tuple[bytes, Iterable[memoryview]]:
        if self._resting != (generation, boundary):
            raise SnapshotUnavailable(f"this rank does not rest at step {boundary} of generation {generation}")
        return self._protected.describe(self._layouts, self._start, self._told)

    def own(self) -> tuple[list[ddp.Layout], bytes, Told]:
        """What this rank itself rests with: the buckets of the next step, what it begins with, and what it tells."""
        return self._layouts, self._start, self._told

    def fetch_live(
        self, call: Call, rank: int, boundary: int, *, aside: bool
    ) -> tuple[list[ddp.Layout], bytes, Told, int]:
        """Fetch a twin's live state; as `own` of the twin, and the bytes moved.

        `aside`: should the twin die now, what this rank has may be the last copy of its boundary, so the tensors wait
        in memory of their own for `take_in`. Else they come straight into the protected ones, which are of no boundary
        meanwhile. Raises PeerLost or SnapshotUnavailable.
        """
        description: dict[str, Any] = {}
        memory = memoryview(b"")

        def place(described: bytes) -> Iterable[memoryview]:
            nonlocal description, memory
            if not aside:
                description, rooms = self._protected.place(described)
                return rooms
            description = pickle.loads(described)
            memory = _anywhere(wholestate.size_of(description["tensors"]))
            return [memory]

        moved = self._from(call, rank, lambda peer: peer.live(call.generation, boundary, place))
        self._aside = (description["tensors"], memory) if aside else None
        return description["layouts"], description["start"], description["told"], moved

    def take_in(self) -> None:
        """Write what was fetched aside into the protected tensors, and give its memory back.

        Call only once all of it has come. Raises SnapshotUnavailable where it does not fit this rank's objects.
        """
        if self._aside is not None:
            (listed, data), self._aside = self._aside, None
            fill(self._protected.targets_for(listed), data)

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
