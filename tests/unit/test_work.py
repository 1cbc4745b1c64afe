"""How long is waited for a collective in flight."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from phoenix_core import backends
from phoenix_core.work import BreakableWork

FORMING = timedelta(seconds=0.5)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Both members of a gloo group, which had little time for its forming."""
    monkeypatch.setattr(backends, "FORMING_TIMEOUT", FORMING)
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        formed = [pool.submit(backends.GlooPart, store, rank, 2, "127.0.0.1") for rank in range(2)]
        return [part.result().backend for part in formed]


def test_a_message_may_come_later_than_its_group_was_allowed_to_form(pair: list[Any]) -> None:
    into, ended = torch.zeros(4), threading.Event()
    receive = BreakableWork(pair[1].recv([into], 0, 0), "recv", [into])
    receive.get_future().add_done_callback(lambda _: ended.set())
    assert not ended.wait(3 * FORMING.total_seconds())
    send = BreakableWork(pair[0].send([torch.ones(4)], 1, 0), "send", [])
    assert send.wait() and receive.wait()
    assert into.tolist() == [1.0] * 4
