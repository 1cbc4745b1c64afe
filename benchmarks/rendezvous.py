"""What gloo asks of the rendezvous store to connect one group: counted, with all ranks as threads of one process."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from phoenix_core import communicator
from phoenix_core.store import ControlStore
from phoenix_core.storeserver import StoreServer
from phoenix_core.wire import LINE_LIMIT, encode

_c10d: Any = communicator._c10d
TOKEN = "of a benchmark"


class CountingStore(StoreServer):
    """Counts requests by kind, and bytes of requests and answers."""

    def __init__(self) -> None:
        super().__init__(TOKEN)
        self.requests: Counter[str] = Counter()
        self.bytes = 0

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        self.requests[message["op"]] += 1
        answer = await super()._answer(message)
        self.bytes += len(encode(message)) + len(encode(answer))
        return answer


def connect(ranks: int) -> dict[str, Any]:
    """One group of `ranks`: what the store was asked, its processor time, and the time until all were connected."""
    loop = asyncio.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0), backlog=ranks)
    address: tuple[str, int] = listener.getsockname()
    store = CountingStore()
    spent: list[float] = []

    def serve() -> None:
        server = loop.run_until_complete(asyncio.start_server(store.serve, sock=listener, limit=LINE_LIMIT))
        began = time.thread_time()
        loop.run_forever()
        spent.append(time.thread_time() - began)
        server.close()
        loop.run_until_complete(loop.shutdown_asyncgens())

    thread = threading.Thread(target=serve)
    thread.start()
    stores = [ControlStore(address, TOKEN) for _ in range(ranks)]

    def form(rank: int) -> Any:
        options = _c10d.ProcessGroupGloo._Options()
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._threads = 2
        group = _c10d.ProcessGroupGloo(_c10d.PrefixStore("1/world", stores[rank]), rank, ranks, options)
        stores[rank].close()
        return group

    began = time.monotonic()
    with ThreadPoolExecutor(ranks) as pool:
        groups = list(pool.map(form, range(ranks)))
    seconds = time.monotonic() - began
    groups.clear()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    return {
        "ranks": ranks, "requests": dict(store.requests), "bytes": store.bytes, "wall_s": seconds,
        "store_cpu_s": spent[0],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps([connect(int(ranks)) for ranks in sys.argv[1:]]))
