"""Whether something of gloo is still on its way is read from its threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from phoenix_core import backends, glooidle
from phoenix_core.glooidle import LET_GO_AFTER_S, LET_GO_AT_LAST_S, NAMES, gloo_is_idle, nothing_will_come
from tests.support import wait_until

_PR_SET_NAME = 15


@contextmanager
def thread_of_gloo(name: str, *, busy: bool) -> Iterator[None]:
    """A thread under such a name that computes, or sleeps."""
    ended, named = threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
        named.set()
        while busy and not ended.is_set():
            pass
        ended.wait()

    thread = threading.Thread(target=run)
    thread.start()
    assert named.wait(10)
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("name", NAMES)
def test_a_thread_that_has_something_to_do_is_waited_for(name: str) -> None:
    with thread_of_gloo(name, busy=True):
        wait_until(lambda: not gloo_is_idle(), "it computes")
    with thread_of_gloo(name, busy=False):
        wait_until(gloo_is_idle, "it sleeps")
    with thread_of_gloo("another", busy=True):
        assert gloo_is_idle()


def test_something_is_let_go_after_a_while_if_gloo_rests_and_at_last_in_any_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for idle in (True, False):
        monkeypatch.setattr(glooidle, "gloo_is_idle", lambda idle=idle: idle)
        assert not nothing_will_come(LET_GO_AFTER_S)
        assert nothing_will_come(LET_GO_AFTER_S + 0.01) is idle
        assert nothing_will_come(LET_GO_AT_LAST_S + 0.01)


def test_the_names_are_those_that_torch_gives_its_threads() -> None:
    """A torch that calls them otherwise would make every thread look idle."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        formed = [pool.submit(backends.GlooPart, store, rank, 2, "127.0.0.1") for rank in range(2)]
        pair = [part.result() for part in formed]
    wait_until(lambda: set(NAMES) <= thread_names(), "gloo's threads have named themselves")
    del pair


def thread_names() -> set[str]:
    return {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
