"""The events of a run: by offset, and as a stream that goes on until the run ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event

from service import store, views
from service.context import Service
from service.feed import BATCH
from service.routes.common import PROBLEMS, Id, ServiceOf, existing_run
from service.shapes import EventPage, EventShape
from service.states import RunState

router = APIRouter(tags=["events"], responses=PROBLEMS)

# Bounds the wait for a wake-up; long enough that idle streams cost nothing.
LOOK_AGAIN_S = 1.0
KEEP_ALIVE_S = 15.0

Kinds = Annotated[list[str] | None, Query(alias="kind", description="Only events of these kinds")]


@router.get("/runs/{run_id}/events")
def list_events(
    service: ServiceOf,
    run_id: Id,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=5000)] = BATCH,
    kind: Kinds = None,
) -> EventPage:
    """Events after an offset; `next` is the offset to go on from, also when there are no more for now."""
    items = _read(service, run_id, after, limit, kind or [])
    return EventPage(items=items, next=items[-1].offset if items else after)


@router.get(
    "/runs/{run_id}/stream",
    # Not EventSourceResponse: with that as its declared class FastAPI takes the function for a generator.
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The events."},
        204: {"description": "The run has ended and the client has everything: do not connect again."},
    },
)
async def stream_events(
    service: ServiceOf,
    run_id: Id,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,18}$")] = None,
    kind: Kinds = None,
) -> Response:
    """Server-sent events: `id` is the offset, `data` the event; a last one named `end` holds the run's state."""
    offset = int(last_event_id) if last_event_id else after
    state, newest = await to_thread.run_sync(_state, service, run_id)
    if state.ended and last_event_id and offset >= newest:
        return Response(status_code=204)
    return EventSourceResponse(
        _stream(service, run_id, offset, kind or []), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _stream(service: Service, run: str, offset: int, kinds: list[str]) -> AsyncIterator[bytes]:
    """Ends with the run or with the service, whichever ends first."""
    silent_s = 0.0
    yield b": open\n\n"
    while not service.hub.closed:
        version = service.hub.version(run)
        news = await service.feed.after(run, offset, kinds, version)
        if news.piece:
            # One piece for all: between two pieces nobody could notice that the client has left.
            yield news.piece
            offset, silent_s = news.offset, 0.0
        elif news.state.ended:
            yield format_sse_event(event="end", data_str=f'{{"state":"{news.state}"}}')
            return
        else:
            silent_s += LOOK_AGAIN_S
            if silent_s >= KEEP_ALIVE_S:
                silent_s = 0.0
                yield format_sse_event(comment="ping")
            await service.hub.wait(run, version, LOOK_AGAIN_S)


def _state(service: Service, run: str) -> tuple[RunState, int]:
    with service.database.read() as session:
        return RunState(existing_run(session, run).state), store.last_offset(session, run)


def _read(service: Service, run: str, after: int, limit: int, kinds: list[str]) -> list[EventShape]:
    with service.database.read() as session:
        existing_run(session, run)
        first = {trial.id: trial.first_at for trial in store.trials_of(session, run)}
        rows = store.events(session, run, after=after, limit=limit, kinds=kinds)
        return [views.event_shape(row, first[row.trial_id]) for row in rows]
