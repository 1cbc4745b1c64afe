"""State between workers and the rendezvous store, over real sockets in one process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from phoenix_core import sockets
from phoenix_core.errors import GenerationSuperseded, PeerLost, SnapshotUnavailable
from phoenix_core.kept import KEPT_BOUNDARIES, checksum
from phoenix_core.store import ControlStore
from phoenix_core.storeserver import StoreServer
from phoenix_core.transport import PeerClient, PeerServer

LOOPBACK = "127.0.0.1"
LIVE = bytearray(b"live state of a twin" * 50_000)


def serve_live(generation: int, boundary: int) -> tuple[bytes, Sequence[memoryview]]:
    if (generation, boundary) != (3, 7):
        raise SnapshotUnavailable("does not rest there")
    return b"description", [memoryview(LIVE)[:10], memoryview(LIVE)[10:]]


@pytest.fixture
def server() -> Iterator[PeerServer]:
    result = PeerServer(LOOPBACK, "token", serve_live)
    yield result
    result.close()


@pytest.fixture
def client(server: PeerServer) -> Iterator[PeerClient]:
    result = PeerClient(server.address, "token")
    yield result
    result.close()


def fetched(client: PeerClient, boundary: int) -> bytes:
    """What the server keeps of rank 2."""
    return bytes(client.small(2, boundary, lambda size: memoryview(bytearray(size))))


def test_a_small_state_is_kept_and_given_back(server: PeerServer, client: PeerClient) -> None:
    client.put(2, 5, b"five")
    client.put(2, 6, b"six")
    assert fetched(client, 5) == b"five"
    assert server.held.boundaries() == {2: (5, 6)}
    with pytest.raises(SnapshotUnavailable, match="rank 2 at step 9"):
        fetched(client, 9)


def test_what_rots_where_it_is_kept_is_found_and_dropped(server: PeerServer, client: PeerClient) -> None:
    for boundary in (5, 6):
        client.put(2, boundary, b"a state of some length")
    payload, checksum = server.held._kept[2][6]
    server.held._kept[2][6] = (bytes([payload[0] ^ 1]) + bytes(payload[1:]), checksum)
    with pytest.raises(SnapshotUnavailable, match="rank 2 at step 6 was damaged where it was kept"):
        fetched(client, 6)
    assert server.held.boundaries() == {2: (5,)}
    assert fetched(client, 5) == b"a state of some length"


def test_where_the_job_goes_back_far_the_old_state_is_kept_and_later_ones_are_void(server: PeerServer) -> None:
    states = server.held
    for boundary in (90, 91, 92, 93, 40):
        states.put(0, boundary, b"x")
    assert 40 in states.boundaries()[0]
    states.forget_after(40)
    assert states.boundaries() == {0: (40,)}


def test_old_boundaries_are_dropped(server: PeerServer, client: PeerClient) -> None:
    for boundary in range(10):
        client.put(0, boundary, b"x")
    assert server.held.boundaries() == {0: tuple(range(10 - KEPT_BOUNDARIES, 10))}


def test_live_state_goes_straight_into_its_place(client: PeerClient) -> None:
    rooms = [bytearray(10), bytearray(len(LIVE) - 10)]
    seen: list[bytes] = []

    def place(described: bytes) -> list[memoryview]:
        seen.append(described)
        return [memoryview(room) for room in rooms]

    assert client.live(3, 7, place) == len(LIVE)
    assert seen == [b"description"] and b"".join(rooms) == LIVE


def test_a_twin_that_does_not_rest_gives_nothing(client: PeerClient) -> None:
    with pytest.raises(SnapshotUnavailable, match="does not rest there"):
        client.live(3, 8, lambda _: [])


def test_a_stranger_is_not_listened_to(server: PeerServer) -> None:
    stranger = PeerClient(server.address, "guess")
    with pytest.raises(PeerLost):
        stranger.put(0, 1, b"poison")
    stranger.close()
    assert server.held.boundaries() == {}


def test_nobody_there_is_a_lost_peer() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(PeerLost, match="no peer answers"):
        PeerClient(address, "token")


def test_a_transfer_whose_bytes_nobody_takes_breaks_off_once_it_may_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PATH_LIMIT_S", 0.2)
    with socket.create_server((LOOPBACK, 0)) as deaf:
        client = PeerClient(deaf.getsockname(), "token", anew=True)
        with pytest.raises(PeerLost, match="Errno 110"):
            client.put(0, 1, bytes(64 << 20))
        client.close()


def test_only_connected_foreign_sockets_are_shut_down() -> None:
    before = sockets.open_sockets()
    listener = socket.create_server((LOOPBACK, 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    kept_near = socket.create_connection(listener.getsockname())
    kept_far, _ = listener.accept()
    for kept in (kept_near, kept_far):
        sockets.keep_out(kept)
    sockets.shut_down(sockets.open_sockets() - before)
    assert near.recv(1) == b""
    kept_near.sendall(b"alive")
    assert kept_far.recv(5) == b"alive"
    again = socket.create_connection(listener.getsockname())  # the listening one still listens
    for connection in (listener, near, far, kept_near, kept_far, again):
        connection.close()


@pytest.fixture
def store_address() -> Iterator[tuple[str, int]]:
    """A store server on a loop of its own, as in the launcher."""
    loop = asyncio.new_event_loop()
    listener = socket.create_server((LOOPBACK, 0))
    address = listener.getsockname()
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(StoreServer("token").serve, sock=listener)
        started.set()
        await stop.wait()
        server.close()
        clients = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(clients, timeout=5) if clients else None

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    yield address
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_a_key_is_waited_for(store_address: tuple[str, int]) -> None:
    reader, writer = (ControlStore(store_address, "token") for _ in range(2))
    thread = threading.Timer(0.05, writer.set, args=("1/key", b"value"))
    thread.start()
    assert reader.get("1/key") == b"value"
    thread.join()
    assert reader.check(["1/key"]) and not reader.check(["1/other"])
    assert (reader.add("1/n", 2), writer.add("1/n", 3)) == (2, 5)
    reader.close()


def test_a_wait_ends_when_a_newer_generation_is_announced(store_address: tuple[str, int]) -> None:
    store = ControlStore(store_address, "token", superseded=lambda: True)
    with pytest.raises(GenerationSuperseded):
        store.get("1/never")
    store.close()


def test_the_store_forgets_generations_older_than_the_last_but_one(store_address: tuple[str, int]) -> None:
    store = ControlStore(store_address, "token")
    for key in ("init/x", "1/a", "2/b", "3/c"):
        store.set(key, b"value")
    assert not store.check(["1/a"])
    assert store.check(["init/x", "2/b", "3/c"])
    store.close()


class TwinSide:
    """A worker that has the tensors of step 5, and of no other."""

    TENSORS = b"the same on both" * 1000

    def agrees(self, boundary: int, sum_: str) -> bool:
        if boundary != 5:
            raise SnapshotUnavailable(f"no snapshot of step {boundary} yet")
        return sum_ == checksum(self.TENSORS)

    def tensors(self, boundary: int, sum_: str) -> tuple[bytes, memoryview]:
        if not self.agrees(boundary, sum_):
            raise SnapshotUnavailable("other tensors")
        return b"which", memoryview(self.TENSORS)


@pytest.fixture
def twin_client() -> Iterator[tuple[PeerServer, PeerClient]]:
    server = PeerServer(LOOPBACK, "token", serve_live, twin=TwinSide())
    client = PeerClient(server.address, "token")
    yield server, client
    client.close()
    server.close()


def test_a_twin_keeps_a_state_without_tensors_only_if_it_has_them(twin_client: tuple[PeerServer, PeerClient]) -> None:
    server, client = twin_client
    sum_ = checksum(TwinSide.TENSORS)
    assert client.put(2, 5, b"small", shared=sum_)
    assert not client.put(3, 5, b"other", shared="another sum")
    with pytest.raises(SnapshotUnavailable, match="no snapshot of step 6 yet"):
        client.put(2, 6, b"later", shared=sum_)
    assert server.held_bare.boundaries() == {2: (5,)} and server.held.boundaries() == {}
    room = bytearray(5)
    assert bytes(client.small(2, 5, lambda _: memoryview(room), bare=True)) == b"small"


def test_a_twins_tensors_arrive_as_they_were_asked_for(twin_client: tuple[PeerServer, PeerClient]) -> None:
    _, client = twin_client
    room = bytearray(len(TwinSide.TENSORS))
    client.tensors(5, checksum(TwinSide.TENSORS), lambda description: memoryview(room))
    assert room == TwinSide.TENSORS
    with pytest.raises(SnapshotUnavailable, match="other tensors"):
        client.tensors(5, "another sum", lambda description: memoryview(room))
