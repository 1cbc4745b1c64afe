"""A worker's line to its agent."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from phoenix_core.advice import for_the_job, say_once
from phoenix_core.control import Control
from phoenix_core.tripwire import Tripwire
from phoenix_core.wire import decode
from tests.support import wait_until


@pytest.fixture
def line() -> Iterator[tuple[Control, socket.socket]]:
    for_the_job.clear()  # of other tests of this process
    agents, workers = socket.socketpair()
    control = Control(workers.detach(), os.dup(Tripwire.create().fd), heartbeat_s=0.001)
    yield control, agents
    control.leave()  # else the end of the line would end this process
    agents.close()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "phoenix-control"], "the reader's end")
    control._socket.close()


def test_whoever_leaves_is_not_asked_for_its_progress_any_more(line: tuple[Control, socket.socket]) -> None:
    """The heart's thread may be inside of torch: the process is not to end before it has come back."""
    control, agents = line
    asked, answer, left = threading.Event(), threading.Event(), threading.Event()

    def progress() -> dict[str, object]:
        asked.set()
        assert answer.wait(10)
        return {"boundary": 7}

    control.start(lambda _: None, progress)
    assert asked.wait(10)

    def leave() -> None:
        control.leave()
        left.set()

    leaving = threading.Thread(target=leave)
    leaving.start()
    with agents.makefile("rb") as reader:
        assert decode(reader.readline())["op"] == "leaving"
        assert not left.is_set(), "it is still being asked"
        answer.set()
        assert decode(reader.readline()) == {"op": "progress", "boundary": 7}
    leaving.join(10)
    assert left.is_set() and not [t for t in threading.enumerate() if t.name == "phoenix-heartbeat"]


def test_what_was_said_goes_up_before_the_next_heartbeat_and_once(line: tuple[Control, socket.socket]) -> None:
    control, agents = line
    text = "this script does so"
    say_once(text)
    say_once(text)
    control.start(lambda _: None, lambda: {"boundary": 7})
    with agents.makefile("rb") as reader:
        assert decode(reader.readline()) == {"op": "advised", "about": text, "text": text}
        assert [decode(reader.readline())["op"] for _ in range(3)] == ["progress"] * 3
