"""The coordinator's process, with an agent that is played."""

from __future__ import annotations

import asyncio
import socket

import pytest

from phoenix_core.coordinator import Coordinator
from phoenix_core.events import EventWriter
from phoenix_core.roster import Job
from phoenix_core.settings import Detection
from phoenix_core.wire import encode


@pytest.mark.parametrize("logs_apart", [True, False])
def test_what_ranks_say_in_their_logs_is_said_once_on_the_terminal(
    logs_apart: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    lost = {"op": "advised", "about": "no checkpoint of step 4"}

    async def check() -> None:
        job = Job(rank_nodes=("n0", "n0"), spare_nodes=(), max_restarts=0, begins_at=0, detection=Detection())
        coordinator = Coordinator(job, token="t", events=EventWriter(None), logs_apart=logs_apart)
        listening = socket.create_server(("127.0.0.1", 0))
        ended = asyncio.create_task(coordinator.run(listening))
        _, agent = await asyncio.open_connection(*listening.getsockname())
        agent.write(encode({"op": "hello", "node": "n0", "token": "t"}))
        for worker in ("n0-w0", "n0-w1"):
            agent.write(encode({**lost, "worker": worker, "text": "no checkpoint of step 4: full"}))
        agent.write(encode({"op": "advised", "worker": "n0-w1", "about": "other", "text": "other"}))
        agent.close()  # after these lines: the loss of its node, and so the end of the job
        assert (await asyncio.wait_for(ended, 20)).outcome == "failed"

    asyncio.run(check())
    told = [line for line in capfd.readouterr().err.splitlines() if "n0-w" in line and "failed" not in line]
    assert told == (["phoenix: n0-w0: no checkpoint of step 4: full", "phoenix: n0-w1: other"] if logs_apart else [])
