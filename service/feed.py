"""What the streams of one run say next, looked up once for all that stand at the same place.

A page that everybody watches has as many streams as watchers, and each event wakes them all: each with a look of its
own into the database they would keep a core from the training that they watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from anyio import to_thread
from fastapi.sse import format_sse_event

from service import store, views
from service.database import Database
from service.problems import not_found
from service.states import RunState

BATCH = 500
# For so long an answer holds: what another service on this database adds is seen that much later at most.
HOLDS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class News:
    """Events after an offset as one piece of a stream, empty where there are none yet; `offset` is the last of them."""

    state: RunState
    piece: bytes
    offset: int


Key = tuple[str, int, tuple[str, ...], int]


class Feed:
    """Of one service, in its event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looks: dict[Key, tuple[float, asyncio.Task[News]]] = {}

    async def after(self, run: str, offset: int, kinds: Sequence[str], version: int) -> News:
        """`version`: of the hub, from before this was asked. Raises Problem 404."""
        key, now = (run, offset, tuple(kinds), version), asyncio.get_running_loop().time()
        known = self._looks.get(key)
        if known is None or now - known[0] > HOLDS_S:
            self._looks = {other: look for other, look in self._looks.items() if now - look[0] <= HOLDS_S}
            known = now, asyncio.create_task(to_thread.run_sync(self._look, run, offset, tuple(kinds)))
            self._looks[key] = known
        # One watcher that leaves must not take the answer from the others.
        return await asyncio.shield(known[1])

    def _look(self, run: str, offset: int, kinds: tuple[str, ...]) -> News:
        with self._database.read() as session:
            if (found := store.find_run(session, run)) is None:
                raise not_found("run", run)
            rows = store.events(session, run, after=offset, limit=BATCH, kinds=kinds)
            first = {trial.id: trial.first_at for trial in store.trials_of(session, run)} if rows else {}
            events = [views.event_shape(row, first[row.trial_id]) for row in rows]
        piece = b"".join(format_sse_event(data_str=event.model_dump_json(), id=str(event.offset)) for event in events)
        return News(state=RunState(found.state), piece=piece, offset=events[-1].offset if events else offset)
