"""State between workers: a small server in each, and the requests that peers make of it.

The wire is a JSON header line, then raw bytes. Every connection begins with the job's token, since the
payloads are unpickled: nobody outside the job is listened to.
"""

from __future__ import annotations

import hmac
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final

import numpy

from phoenix_core.errors import PeerLost, SnapshotUnavailable
from phoenix_core.sockets import keep_out
from phoenix_core.wire import decode, encode

KEPT_BOUNDARIES: Final = 4
"""Small states kept per owner: a survivor may be one step behind, a broken step may have sent one ahead."""
TIMEOUT_S: Final = 30.0


Payload = bytes | memoryview


def checksum(payload: Payload) -> str:
    """Finds any single flipped bit and every truncation. Wrapping sums run at the speed of memory, SHA-256 does not."""
    whole = len(payload) // 8 * 8
    total = int(numpy.frombuffer(payload[:whole], dtype=numpy.uint64).sum())
    return f"{len(payload):x}-{total:x}-{zlib.crc32(payload[whole:]):x}"


class SmallStates:
    """States of ranks by owner and boundary; of each owner the latest ones."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, tuple[Payload, str]]] = {}
        self._lock = threading.Lock()

    def put(
        self, owner: int, boundary: int, payload: Payload, limit: int = KEPT_BOUNDARIES, sum_: str | None = None
    ) -> str:
        """Keep a state with its checksum, which is returned; `sum_` where it is known already."""
        sum_ = checksum(payload) if sum_ is None else sum_
        with self._lock:
            kept = self._kept.setdefault(owner, {})
            kept[boundary] = (payload, sum_)
            for old in sorted(kept)[:-limit]:
                if old != boundary:  # the job may have gone back far behind what is kept
                    del kept[old]
        return sum_

    def forget_after(self, boundary: int) -> None:
        """The job goes back to `boundary`: what came later is void."""
        with self._lock:
            for kept in self._kept.values():
                for later in [found for found in kept if found > boundary]:
                    del kept[later]

    def get(self, owner: int, boundary: int) -> Payload:
        """Raises SnapshotUnavailable where it is not kept, or no longer what was kept; that is then dropped."""
        with self._lock:
            try:
                payload, sum_ = self._kept[owner][boundary]
            except KeyError:
                raise SnapshotUnavailable(f"no state of rank {owner} at step {boundary} is kept here") from None
            if checksum(payload) != sum_:
                del self._kept[owner][boundary]
                raise SnapshotUnavailable(f"the state of rank {owner} at step {boundary} was damaged where it was kept")
            return payload

    def boundaries(self) -> dict[int, tuple[int, ...]]:
        with self._lock:
            return {owner: tuple(sorted(kept)) for owner, kept in self._kept.items()}


class PeerServer:
    """Serves this worker's held small states and, during a recovery, its live tensors."""

    def __init__(
        self, host: str, token: str, serve_live: Callable[[int, int], tuple[bytes, Sequence[memoryview]]]
    ) -> None:
        """`serve_live(generation, boundary)` gives the description and memory of the live state, or raises
        SnapshotUnavailable; the memory must not change until the generation has resumed."""
        self._token = token
        self._serve_live = serve_live
        self.held = SmallStates()
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

    def _answer(self, request: dict[str, Any], reader: BinaryIO, connection: socket.socket) -> None:
        try:
            match request["op"]:
                case "put":
                    payload = reader.read(request["size"])
                    if checksum(payload) != request["checksum"]:
                        raise SnapshotUnavailable("the state arrived damaged")
                    self.held.put(request["owner"], request["boundary"], payload, request["kept"], request["checksum"])
                    connection.sendall(encode({"ok": True}))
                case "small":
                    held = self.held.get(request["owner"], request["boundary"])
                    connection.sendall(encode({"ok": True, "size": len(held), "checksum": checksum(held)}))
                    connection.sendall(held)
                case "live":
                    described, parts = self._serve_live(request["generation"], request["boundary"])
                    connection.sendall(encode({"ok": True, "size": len(described)}) + described)
                    for part in parts:
                        connection.sendall(part)
        except SnapshotUnavailable as error:
            connection.sendall(encode({"ok": False, "error": str(error)}))

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class PeerClient:
    """One connection to a peer's server. Not for use by two threads at once."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        """Raises PeerLost where nobody answers there."""
        try:
            self._socket = socket.create_connection(address, timeout=TIMEOUT_S)
        except OSError as error:
            raise PeerLost(f"no peer answers at {address[0]}:{address[1]}: {error}") from error
        keep_out(self._socket)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")
        self._hello = encode({"token": token})

    def put(
        self, owner: int, boundary: int, payload: Payload, kept: int = KEPT_BOUNDARIES, sum_: str | None = None
    ) -> None:
        """Store a state there, with its checksum `sum_` if that is known; returns once the holder has verified it."""
        size, sum_ = len(payload), checksum(payload) if sum_ is None else sum_
        header = {"op": "put", "owner": owner, "boundary": boundary, "size": size, "checksum": sum_, "kept": kept}
        self._ask(header, payload)

    def small(self, owner: int, boundary: int) -> bytes:
        """Raises SnapshotUnavailable where it is not kept or damaged."""
        answer = self._ask({"op": "small", "owner": owner, "boundary": boundary})
        payload = self._read(answer["size"])
        if checksum(payload) != answer["checksum"]:
            raise SnapshotUnavailable(f"the state of rank {owner} at step {boundary} arrived damaged")
        return payload

    def live(self, generation: int, boundary: int, place: Callable[[bytes], Iterable[memoryview]]) -> int:
        """Fetch a twin's live state; `place(description)` says where the parts go. Returns the bytes moved."""
        answer = self._ask({"op": "live", "generation": generation, "boundary": boundary})
        moved = 0
        for part in place(self._read(answer["size"])):
            self._fill(part)
            moved += len(part)
        return moved

    def _ask(self, header: dict[str, Any], payload: Payload = b"") -> dict[str, Any]:
        try:
            self._socket.sendall(self._hello + encode(header))
            self._hello = b""
            self._socket.sendall(payload)
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
        done = 0
        while done < len(part):
            try:
                count = self._reader.readinto(part[done:])
            except OSError as error:
                raise PeerLost(f"the peer's connection broke: {error}") from error
            if not count:
                raise PeerLost("the peer closed the connection in mid transfer")
            done += count

    def close(self) -> None:
        self._reader.close()
        self._socket.close()
