"""An agent: it serves on, whatever keeps it from starting a worker as it should."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from phoenix_core.agent import Agent, AgentConfig
from phoenix_core.settings import Detection
from phoenix_core.wire import encode, messages


class Coordinator:
    """What the agent talks to: `told` are the agent's messages, in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.left = asyncio.Event()
        self.writer: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer.set_result(writer)
        async for message in messages(reader):
            self.told.put_nowait(message)
        writer.close()
        self.left.set()

    async def say(self, **message: object) -> None:
        (await self.writer).write(encode(message))

    async def hear(self, op: str) -> dict[str, Any]:
        while (message := await asyncio.wait_for(self.told.get(), 20))["op"] != op:
            pass
        return message


@asynccontextmanager
async def agent_of(run_dir: Path, *command: str) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator()
    server = await asyncio.start_server(coordinator.serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    config = AgentConfig(
        node="n0", coordinator=address, store=address, token="", command=command, environment={}, run_dir=str(run_dir),
        address="127.0.0.1", world_size=1, local_world_size=1, detection=Detection(),
    )  # fmt: skip
    agent = asyncio.create_task(Agent(config).run())
    try:
        yield coordinator
        await coordinator.say(op="end")
        await asyncio.wait_for(agent, 20)
        await asyncio.wait_for(coordinator.left.wait(), 20)
    finally:
        agent.cancel()
        server.close()


def test_a_worker_that_cannot_be_started_has_ended_and_the_agent_lives(tmp_path: Path) -> None:
    async def check() -> None:
        async with agent_of(tmp_path, str(tmp_path / "gone")) as coordinator:
            await coordinator.say(op="spawn", worker="w7")
            failed = await coordinator.hear("script_failed")
            assert failed["worker"] == "w7" and "gone" in failed["error"]
            assert (await coordinator.hear("exited"))["worker"] == "w7"
            await coordinator.say(op="ping")
            await coordinator.hear("pong")

    asyncio.run(check())


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split())


@pytest.mark.parametrize("call", ["socket.socketpair", "phoenix_core.tripwire.Tripwire.create", "os.pidfd_open"])
def test_where_there_are_no_descriptors_left_nothing_of_the_worker_is(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()

    def no_more(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def check() -> None:
        async with agent_of(tmp_path, sys.executable, "-c", "import signal; signal.pause()") as coordinator:
            await coordinator.say(op="ping")
            await coordinator.hear("pong")
            with monkeypatch.context() as patched:
                patched.setattr(call, no_more)
                await coordinator.say(op="spawn", worker="w7")
                assert "Too many open files" in (await coordinator.hear("script_failed"))["error"]
            assert (await coordinator.hear("exited"))["worker"] == "w7"
            assert children() <= before

    asyncio.run(check())


def test_a_log_that_cannot_be_opened_keeps_no_worker_from_starting(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")  # in the place of the directory, as a disk without room for one would be

    async def check() -> None:
        async with agent_of(tmp_path, sys.executable, "-c", "print('seen')") as coordinator:
            await coordinator.say(op="spawn", worker="w7")
            assert (await coordinator.hear("exited"))["code"] == 0

    asyncio.run(check())
