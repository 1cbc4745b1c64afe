"""Clients of a service by the hundred, for benchmarks: streams that are watched, and reads at a fixed rate.

Bare connections, because a comfortable HTTP client would take more of the machine than the service that is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit


class Refused(Exception):
    """The service answered something else than what was measured; the message has its words."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """`seconds` from the instant at which it was due to its last byte: waiting for a free connection counts."""

    name: str
    seconds: float


class Connection:
    """One connection that stays, one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> bytes:
        """The body. Raises Refused."""
        reader, writer = await self._opened()
        writer.write(self._head(path))
        head = await reader.readuntil(b"\r\n\r\n")
        length = _header(head, b"content-length")
        body = await reader.readexactly(int(length or 0))
        if not head.startswith(b"HTTP/1.1 200"):
            raise Refused(f"GET {path}: {head.split(bytes([13]))[0].decode()} {body[:300].decode(errors='replace')}")
        return body

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """The lines of an answer that does not end."""
        reader, writer = await self._opened()
        writer.write(self._head(path))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise Refused(f"GET {path}: {head.split(bytes([13]))[0].decode()}")
        while line := await reader.readline():
            yield line

    def _head(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n\r\n".encode()

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        return self._streams

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with suppress(OSError):
                await self._streams[1].wait_closed()
            self._streams = None


@asynccontextmanager
async def watched(url: str, path: str, count: int) -> AsyncIterator[list[int]]:
    """So many streams of one address while the block runs; how many events each has seen so far."""
    seen = [0] * count
    connections = [Connection(url) for _ in range(count)]

    async def watch(number: int) -> None:
        async for line in connections[number].lines(path):
            seen[number] += line.startswith(b"id:")

    tasks = [asyncio.create_task(watch(number)) for number in range(count)]
    try:
        yield seen
        for task in tasks:
            if task.done():
                task.result()
                raise Refused(f"GET {path}: the stream ended")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            await connection.close()


async def read_at(
    url: str, paths: Sequence[tuple[str, str]], *, rate: float, for_s: float, connections: int
) -> list[Read]:
    """`rate` reads a second, each due at its instant whether or not those before it have ended.

    `paths`: what is read in turn, each with its name. Raises Refused for the first answer that is no success.
    """
    loop = asyncio.get_running_loop()
    due: asyncio.Queue[tuple[float, str, str] | None] = asyncio.Queue()
    done: list[Read] = []

    async def serve() -> None:
        connection = Connection(url)
        try:
            while (item := await due.get()) is not None:
                at, name, path = item
                await connection.get(path)
                done.append(Read(name=name, seconds=loop.time() - at))
        finally:
            await connection.close()

    async def ask() -> None:
        began = loop.time()
        for number in range(int(rate * for_s)):
            at = began + number / rate
            await asyncio.sleep(max(0.0, at - loop.time()))
            due.put_nowait((at, *paths[number % len(paths)]))
        for _ in range(connections):
            due.put_nowait(None)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            for _ in range(connections):
                group.create_task(serve())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return done


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return None
