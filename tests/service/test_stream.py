"""Server-sent events of a run that has ended; those of a living one are in test_served.py."""

from __future__ import annotations

import asyncio
import json

from service import store
from service.feed import Feed
from service.hub import Hub
from service.routes.events import _stream
from tests.service.helpers import Harness, Script, statements
from tests.support import wait_until


async def ended_run(api: Harness) -> str:
    run, directory = await api.started()
    script = Script(directory)
    script.begin()
    script.step(0)
    script.result()
    script.close()
    (directory / "end").touch()

    def ended() -> bool:
        api.tick()
        with api.service.database.read() as session:
            return not store.running_trials(session)

    wait_until(ended, "the end of the run")
    return str(run["id"])


async def test_the_stream_of_an_ended_run_is_all_its_events_and_an_end(api: Harness) -> None:
    run = await ended_run(api)
    stored = (await api.get(f"/runs/{run}/events", limit=5000))["items"]
    answer = await api.client.get(f"/api/v1/runs/{run}/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in answer.text.split("\n\n") if block and not block.startswith(":")]
    events = [json.loads(block.split("data: ")[1].split("\n")[0]) for block in blocks[:-1]]
    assert events == stored
    assert [f"id: {event['offset']}" in block for event, block in zip(stored, blocks[:-1], strict=True)]
    assert blocks[-1] == 'event: end\ndata: {"state":"FINISHED"}'


async def test_a_batch_of_events_is_one_piece(api: Harness) -> None:
    """Between pieces that are sent at once nobody notices that the client has left; each would be written in vain."""
    run = await ended_run(api)
    pieces = [piece async for piece in _stream(api.service, run, 0, [])]
    assert len(pieces) == 3 and pieces[1].count(b"\n\n") == len((await api.get(f"/runs/{run}/events"))["items"])


async def test_many_watchers_cost_one_look(api: Harness) -> None:
    run = await ended_run(api)
    with statements(api.service.database) as one:
        alone = await _all(api, run)
    api.service.feed = Feed(api.service.database)
    with statements(api.service.database) as many:
        pieces = await asyncio.gather(*(_all(api, run) for _ in range(20)))
    assert all(each == alone for each in pieces)
    assert len(many) == len(one), "twenty that stand at the same place ask once"


async def _all(api: Harness, run: str) -> list[bytes]:
    return [piece async for piece in _stream(api.service, run, 0, [])]


async def test_one_watcher_that_leaves_takes_nothing_from_the_others(api: Harness) -> None:
    run = await ended_run(api)
    alone = await _all(api, run)
    api.service.feed = Feed(api.service.database)
    leaving, staying = (asyncio.create_task(_all(api, run)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == alone
    assert leaving.cancelled()


async def test_a_client_that_comes_back_gets_the_rest_and_is_then_sent_away(api: Harness) -> None:
    run = await ended_run(api)
    stored = (await api.get(f"/runs/{run}/events"))["items"]
    path = f"/api/v1/runs/{run}/stream"
    rest = await api.client.get(path, headers={"Last-Event-ID": str(stored[-2]["offset"])})
    assert rest.text.count("\ndata: ") + rest.text.count("data: {") >= 2 and f"id: {stored[-1]['offset']}" in rest.text
    assert f"id: {stored[-2]['offset']}" not in rest.text
    # 204 tells EventSource not to connect again.
    assert (await api.client.get(path, headers={"Last-Event-ID": str(stored[-1]["offset"])})).status_code == 204


async def test_events_are_paged_by_offset_and_filtered_by_kind(api: Harness) -> None:
    run = await ended_run(api)
    page = await api.get(f"/runs/{run}/events", limit=3)
    rest = await api.get(f"/runs/{run}/events", after=page["next"], limit=5000)
    assert len(page["items"]) == 3 and page["next"] == page["items"][-1]["offset"]
    assert rest["items"][0]["offset"] > page["next"]
    assert (await api.get(f"/runs/{run}/events", after=rest["next"]))["next"] == rest["next"]
    kinds = await api.get(f"/runs/{run}/events", kind="world_formed")
    assert [event["kind"] for event in kinds["items"]] == ["world_formed"]
    assert page["items"][0]["at_s"] == 0.0


async def test_a_notification_between_looking_and_waiting_is_not_lost() -> None:
    hub = Hub()
    seen = hub.version("r")
    hub.notify("r")
    await asyncio.wait_for(hub.wait("r", seen, 60), 5)


async def test_closing_wakes_everybody() -> None:
    hub = Hub()
    waiting = [asyncio.create_task(hub.wait("r", hub.version("r"), 60)) for _ in range(3)]
    await asyncio.sleep(0)
    hub.close()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
