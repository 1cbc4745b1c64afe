"""The limit of what snapshots may send: its notation, its bound in every interval, and a real socket under it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phoenix_core.bandwidth import LEAST_CHUNK, Throttle, TokenBucket, parse_rate, rate_text, too_slow
from phoenix_core.errors import SnapshotUnavailable, UsageError
from phoenix_core.kept import checksum
from phoenix_core.replicator import Replicator
from phoenix_core.transport import PeerServer
from phoenix_core.wire import encode

HOURS = st.floats(0, 100, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200MB/s", 2e8),
        ("1.5 GB/s", 1.5e9),
        ("512KiB/s", 512 * 1024.0),
        ("10Gbit/s", 1.25e9),
        ("64kB", 64e3),
        ("0", None),
        ("none", None),
        ("0MB/s", None),
    ],
)
def test_rates_are_read_with_their_units(text: str, rate: float | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["200", "fast", "-3MB/s", "3 mb/s", "MB/s", "", "nan MB/s", "1e9B/s"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a rate; give a number with its unit, as 200MB/s"):
        parse_rate(text)


def test_a_rate_at_which_nothing_would_arrive_is_refused() -> None:
    with pytest.raises(UsageError, match="less than 16 KiB/s"):
        parse_rate("10kB/s")


@settings(deadline=None)
@given(st.floats(1, 1e12))
def test_a_rate_that_is_told_is_enough_and_can_be_given_back(rate: float) -> None:
    text = rate_text(rate)
    assert len(text.split()[0].replace(".", "")) <= 4
    if rate >= LEAST_CHUNK:
        told = parse_rate(text)
        assert told is not None and rate * (1 - 1e-12) <= told <= rate * 1.011


@settings(deadline=None)
@given(
    rate=st.floats(1.0, 1e9),
    burst=st.integers(1, 1 << 20),
    asked=st.lists(st.tuples(st.floats(0, 1), HOURS), max_size=60),
)
def test_in_no_interval_more_is_sent_than_the_rate_and_one_burst(
    rate: float, burst: int, asked: Sequence[tuple[float, float]]
) -> None:
    """Each of `asked` is a part of a burst, and how long nothing was wanted before it."""
    bucket, now, sent = TokenBucket(rate, burst, 0.0), 0.0, []
    for part, idle in asked:
        now += idle
        size = int(part * burst)
        now += bucket.take(size, now)
        sent.append((now, size))
    for first in range(len(sent)):
        total = 0
        for at, size in sent[first:]:
            total += size
            assert total <= burst + rate * (at - sent[first][0]) * (1 + 1e-6) + 1e-3 * burst + 1


@settings(deadline=None)
@given(rate=st.floats(1.0, 1e9), burst=st.integers(1, 1 << 20), chunks=st.integers(1, 50))
def test_who_always_has_something_to_send_gets_the_whole_rate(rate: float, burst: int, chunks: int) -> None:
    bucket, now = TokenBucket(rate, burst, 0.0), 0.0
    for _ in range(chunks):
        now += bucket.take(burst, now)
    assert now == pytest.approx((chunks - 1) * burst / rate)


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> None:
        if not event.is_set():
            self.now += seconds


def _no_live_state(_generation: int, _boundary: int) -> tuple[bytes, Sequence[memoryview]]:
    raise SnapshotUnavailable("not here")


def never(boundary: int) -> None:
    raise AssertionError(f"step {boundary} was sent with its tensors")


def test_a_replica_goes_over_its_socket_no_faster_than_the_limit() -> None:
    rate, clock, acked = 1e6, Clock(), threading.Event()
    log: list[tuple[float, int]] = []

    class Logged(Throttle):
        def pass_on(self, size: int, ended: threading.Event) -> None:
            super().pass_on(size, ended)
            log.append((clock.now, size))

    server = PeerServer("127.0.0.1", "token", _no_live_state)
    throttle = Logged(rate, clock, clock.wait)
    replicator = Replicator(0, server.address, "token", acked.set, 2, throttle, never)
    payload = bytes(range(256)) * 12_000
    replicator.send(5, payload, checksum(payload))
    assert acked.wait(30) and replicator.safe(5)
    assert server.held.get(0, 5) == payload
    assert sum(size for _, size in log) == len(payload) and len(log) > 50
    for (before, _), (after, size) in pairwise(log):
        assert after - before == pytest.approx(size / rate), "after the first chunk each waits for its own length"
    replicator.close()
    server.close()


def test_a_sender_that_waits_for_the_limit_hears_that_it_is_not_needed() -> None:
    """With the real clock: the state would take three hours."""
    server = PeerServer("127.0.0.1", "token", _no_live_state)
    began = threading.Event()

    class Noted(Throttle):
        def pass_on(self, size: int, ended: threading.Event) -> None:
            began.set()
            super().pass_on(size, ended)

    throttle = Noted(float(LEAST_CHUNK))
    replicator = Replicator(0, server.address, "token", lambda: None, 2, throttle, never)
    payload = bytes(200_000_000)
    replicator.send(5, payload, checksum(payload))
    assert began.wait(30)
    (sender,) = [thread for thread in threading.enumerate() if thread.name == "phoenix-replicate"]
    replicator.close()
    sender.join(30)
    assert not sender.is_alive() and not replicator.safe(5) and server.held.boundaries() == {}
    server.close()


def test_a_new_transfer_ends_the_one_that_was_broken_off_for_it() -> None:
    """The older sender is cut off and never heard of again: no byte of it may keep the newer one waiting."""
    server = PeerServer("127.0.0.1", "token", _no_live_state)
    payload, acked = b"x" * 100_000, threading.Event()
    header = {"op": "put", "owner": 0, "boundary": 5, "size": len(payload), "checksum": checksum(payload)}
    head = encode({"token": "token"}) + encode({**header, "kept": 2, "shared": ""})
    with socket.create_connection(server.address) as older:
        older.sendall(head + payload[:50_000])
        older.settimeout(30)
        replicator = Replicator(0, server.address, "token", acked.set, 2, Throttle(None), never)
        replicator.send(6, payload, checksum(payload))
        assert acked.wait(30)
        assert server.held.boundaries() == {0: (6,)} and server.held.memory().most < 2.1 * len(payload)
        replicator.close()
    server.close()


def test_a_limit_that_training_waits_for_is_told_with_the_rate_that_is_needed() -> None:
    told = too_slow(5e6, sent=12_000_000, step_s=2.5, waited_s=1.5)
    assert told is not None and told.startswith("--replica-bandwidth 5 MB/s is too low") and "12 MB/s is needed" in told
    assert too_slow(5e6, sent=12_000_000, step_s=2.4, waited_s=0.1) is None
