"""State between workers: a small server in each, and the requests that peers make of it.

The wire is a JSON header line, then raw bytes. Every connection begins with the job's token, since the
payloads are unpickled: nobody outside the job is listened to.
"""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import Any, Final, Protocol

from phoenix_core.bandwidth import CHUNK
from phoenix_core.errors import PeerLost, SnapshotUnavailable
from phoenix_core.kept import KEPT_BOUNDARIES, KeptStates, Payload, checksum
from phoenix_core.sockets import PATH_LIMIT_S, give_up_on_a_dead_path, keep_out
from phoenix_core.wire import decode, encode

TIMEOUT_S: Final = 30.0


class Twin(Protocol):
    """What a worker knows of those whose tensors are the same as its own. Called by threads of its server."""

    def agrees(self, boundary: int, sum_: str) -> bool:
        """Whether its own snapshot of `boundary`, which it waits for, has tensors of that sum.

        Raises SnapshotUnavailable where there is none in time.
        """

    def tensors(self, boundary: int, sum_: str) -> tuple[bytes, memoryview]:
        """What these tensors are, pickled, and their bytes. Raises SnapshotUnavailable where none are of that sum."""


class PeerServer:
    """Serves this worker's held small states and, during a recovery, its live tensors."""

    def __init__(
        self,
        host: str,
        token: str,
        serve_live: Callable[[int, int], tuple[bytes, Iterable[memoryview]]],
        twin: Twin | None = None,
    ) -> None:
        """`serve_live(generation, boundary)` gives the description and memory of the live state, or raises
        SnapshotUnavailable; the memory must not change until the generation has resumed."""
        self._token = token
        self._serve_live = serve_live
        self._twin = twin
        self.held, self.held_bare = KeptStates(), KeptStates()
        """Whole or small states; those whose tensors this worker has itself."""
        self._arriving: dict[int, socket.socket] = {}
        self._turns: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, 0), backlog=128)
        keep_out(self._listener)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="phoenix-peers", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            keep_out(connection)
            threading.Thread(target=self._serve, args=(connection,), name="phoenix-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError), connection.makefile("rb") as reader:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not hmac.compare_digest(str(decode(reader.readline()).get("token")), self._token):
                return
            while line := reader.readline():
                self._answer(decode(line), reader, connection)

    def _answer(self, request: dict[str, Any], reader: BufferedReader, connection: socket.socket) -> None:
        try:
            match request["op"]:
                case "put":
                    give_up_on_a_dead_path(connection)  # lest the holder's word be what is sent again too late
                    agrees = self._receive(request, reader, connection)
                    connection.sendall(encode({"ok": True, "agrees": agrees}))
                case "small":
                    states = self.held_bare if request["bare"] else self.held
                    held = states.get(request["owner"], request["boundary"])
                    connection.sendall(encode({"ok": True, "size": len(held), "checksum": checksum(held)}))
                    connection.sendall(held)
                case "live":
                    described, parts = self._serve_live(request["generation"], request["boundary"])
                    connection.sendall(encode({"ok": True, "size": len(described)}) + described)
                    for part in parts:
                        connection.sendall(part)
                case "tensors" if self._twin is not None:
                    described, part = self._twin.tensors(request["boundary"], request["sum"])
                    connection.sendall(encode({"ok": True, "size": len(described)}) + described)
                    connection.sendall(part)
        except SnapshotUnavailable as error:
            connection.sendall(encode({"ok": False, "error": str(error)}))

    def _receive(self, request: dict[str, Any], reader: BufferedReader, connection: socket.socket) -> bool:
        """Take in a state; False where it came without tensors that turn out not to be those here, and is not kept."""
        owner, boundary, kept, shared = (request[name] for name in ("owner", "boundary", "kept", "shared"))
        states = self.held_bare if shared else self.held
        if shared and not self._agrees(request, reader):
            return False
        with self._turn(owner, connection):
            room = states.room(owner, boundary, request["size"], kept)
            _fill(reader, room)
            if checksum(room) != request["checksum"]:
                raise SnapshotUnavailable("the state arrived damaged")
            states.put(owner, boundary, room, kept, request["checksum"])
        return True

    def _agrees(self, request: dict[str, Any], reader: BufferedReader) -> bool:
        """Asked before the state is taken in: a newer one need not wait for that."""
        agreed = False
        try:
            agreed = self._twin is not None and self._twin.agrees(request["boundary"], request["shared"])
        finally:
            if not agreed:
                reader.read(request["size"])
        return agreed

    @contextmanager
    def _turn(self, owner: int, connection: socket.socket) -> Iterator[None]:
        """Of each owner one state arrives at a time: a new one ends the transfer that was broken off for it."""
        with self._lock:
            before, turn = self._arriving.get(owner), self._turns.setdefault(owner, threading.Lock())
            self._arriving[owner] = connection
        if before is not None:
            with suppress(OSError):
                before.shutdown(socket.SHUT_RDWR)
        with turn:
            try:
                yield
            finally:
                with self._lock:
                    if self._arriving[owner] is connection:
                        del self._arriving[owner]

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class PeerClient:
    """One connection to a peer's server. Not for use by two threads at once."""

    def __init__(self, address: tuple[str, int], token: str, *, anew: bool = False) -> None:
        """Raises PeerLost where nobody answers there.

        `anew`: its user begins a transfer anew if it breaks, so that it may break as soon as the path is dead.
        """
        try:
            self._socket = socket.create_connection(address, timeout=PATH_LIMIT_S if anew else TIMEOUT_S)
        except OSError as error:
            raise PeerLost(f"no peer answers at {address[0]}:{address[1]}: {error}") from error
        keep_out(self._socket)
        if anew:
            give_up_on_a_dead_path(self._socket)
            self._socket.settimeout(TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")
        self._hello = encode({"token": token})

    def put(
        self,
        owner: int,
        boundary: int,
        payload: Payload,
        kept: int = KEPT_BOUNDARIES,
        sum_: str | None = None,
        pace: Callable[[int], None] | None = None,
        chunk: int = CHUNK,
        shared: str = "",
    ) -> bool:
        """Store a state there, with its checksum `sum_` if that is known; returns once the holder has verified it.

        `shared` is the sum over tensors that were left out since the holder has them too: returns False where it has
        others, and has not kept the state.

        It goes in pieces of `chunk` bytes, and `pace` is called with the size of each before that is sent; it may wait.
        """
        size, sum_ = len(payload), checksum(payload) if sum_ is None else sum_
        header = {"op": "put", "owner": owner, "boundary": boundary, "size": size, "checksum": sum_, "kept": kept}
        header["shared"] = shared
        view = memoryview(payload)
        pieces = (view[start : start + chunk] for start in range(0, size, chunk))
        return bool(self._ask(header, pieces, pace)["agrees"])

    def small(self, owner: int, boundary: int, room: Callable[[int], memoryview], *, bare: bool = False) -> memoryview:
        """Fetch a state into `room(size)`; `bare`: one that came without tensors.

        Raises SnapshotUnavailable where it is not kept or damaged.
        """
        answer = self._ask({"op": "small", "owner": owner, "boundary": boundary, "bare": bare})
        payload = room(answer["size"])
        self._fill(payload)
        if checksum(payload) != answer["checksum"]:
            raise SnapshotUnavailable(f"the state of rank {owner} at step {boundary} arrived damaged")
        return payload

    def tensors(self, boundary: int, sum_: str, place: Callable[[bytes], memoryview]) -> None:
        """Fetch the tensors of a twin's own snapshot into the memory that `place(description)` gives.

        Raises SnapshotUnavailable where they are damaged, or not of the sum `sum_`.
        """
        answer = self._ask({"op": "tensors", "boundary": boundary, "sum": sum_})
        part = place(self._read(answer["size"]))
        self._fill(part)
        if checksum(part) != sum_:
            raise SnapshotUnavailable(f"the tensors of step {boundary} arrived damaged from a twin")

    def live(self, generation: int, boundary: int, place: Callable[[bytes], Iterable[memoryview]]) -> int:
        """Fetch a twin's live state; `place(description)` says where the parts go. Returns the bytes moved."""
        answer = self._ask({"op": "live", "generation": generation, "boundary": boundary})
        moved = 0
        for part in place(self._read(answer["size"])):
            self._fill(part)
            moved += len(part)
        return moved

    def _ask(
        self, header: dict[str, Any], pieces: Iterable[memoryview] = (), pace: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        try:
            self._socket.sendall(self._hello + encode(header))
            self._hello = b""
            for piece in pieces:
                if pace is not None:
                    pace(len(piece))
                self._socket.sendall(piece)
            line = self._reader.readline()
        except OSError as error:
            raise PeerLost(f"the peer's connection broke: {error}") from error
        if not line:
            raise PeerLost("the peer closed the connection")
        answer = decode(line)
        if not answer["ok"]:
            raise SnapshotUnavailable(answer["error"])
        return answer

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def interrupt(self) -> None:
        """From another thread: end a transfer that waits for a peer that no longer answers, in PeerLost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _fill(self, part: memoryview) -> None:
        try:
            _fill(self._reader, part)
        except OSError as error:
            raise PeerLost(f"the peer's connection broke: {error}") from error

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


def _fill(reader: BufferedReader, part: memoryview) -> None:
    """Raises ConnectionError where the peer has closed the connection before all of it has come."""
    done = 0
    while done < len(part):
        count = reader.readinto(part[done:])
        if not count:
            raise ConnectionError("it was closed in mid transfer")
        done += count
