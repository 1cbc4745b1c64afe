"""The rendezvous store's server: keys that appear once, and readers that wait for them.

Keys begin with their generation (`"7/..."`), so that what an old generation left can be forgotten.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from typing import Any

from phoenix_core.wire import encode, messages


class StoreServer:
    def __init__(self, token: str) -> None:
        self._token = token
        self._values: dict[str, str] = {}
        self._newest = 0
        self._waits: dict[tuple[str, ...], tuple[set[str], asyncio.Event]] = {}
        self._waited_for: dict[str, set[tuple[str, ...]]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client: a hello with the job's token, then requests, answered in order."""
        # Cancelled at the end of the job; asyncio's streams would print a cancelled handler's traceback.
        with suppress(asyncio.CancelledError):
            admitted = False
            async for message in messages(reader):
                if message["op"] == "hello":
                    admitted = hmac.compare_digest(str(message["token"]), self._token)
                elif not admitted:
                    break
                else:
                    writer.write(encode(await self._answer(message)))
        writer.close()

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        key = str(message.get("key", ""))
        match message["op"]:
            case "set":
                self._set(key, message["value"])
                return {}
            case "add":
                total = int(self._values.get(key, "0")) + message["amount"]
                self._set(key, str(total))
                return {"value": total}
            case "get":
                return {"value": await self._wait([key], message["timeout"]) and self._values[key]}
            case "wait":
                return {"value": await self._wait(message["keys"], message["timeout"])}
            case "check":
                return {"value": all(k in self._values for k in message["keys"])}
            case "delete":
                return {"value": self._values.pop(key, None) is not None}
            case "compare_set":
                if self._values.get(key, message["expected"]) == message["expected"]:
                    self._set(key, message["value"])
                return {"value": self._values.get(key)}
            case "count":
                return {"value": len(self._values)}
        return {"error": f"unknown operation {message['op']}"}

    def _set(self, key: str, value: str) -> None:
        self._forget_before(key)
        self._values[key] = value
        for keys in self._waited_for.pop(key, ()):
            missing, arrived = self._waits[keys]
            missing.discard(key)
            if not missing:
                arrived.set()
                del self._waits[keys]

    async def _wait(self, keys: list[str], timeout_s: float) -> bool:
        """True once all keys exist, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(key not in self._values for key in keys):
                    await self._arrival(tuple(keys)).wait()
        except TimeoutError:
            return False
        return True

    def _arrival(self, keys: tuple[str, ...]) -> asyncio.Event:
        """Set when the last of `keys` is. One for all who wait for them: to wake everybody at each key is quadratic."""
        if keys not in self._waits:
            missing = {key for key in keys if key not in self._values}
            self._waits[keys] = (missing, asyncio.Event())
            for key in missing:
                self._waited_for.setdefault(key, set()).add(keys)
        return self._waits[keys][1]

    def _forget_before(self, key: str) -> None:
        """The first key of a new generation: drop what those older than the one before it left behind."""
        generation = _generation(key)
        if generation is None or generation <= self._newest:
            return
        self._newest = generation
        self._values = {k: value for k, value in self._values.items() if not self._is_old(k)}
        # Who waits for an old generation is told of the new one, and asks no more.
        self._waits = {keys: wait for keys, wait in self._waits.items() if not self._is_old(keys[0])}
        self._waited_for = {k: waits for k, waits in self._waited_for.items() if not self._is_old(k)}

    def _is_old(self, key: str) -> bool:
        generation = _generation(key)
        return generation is not None and generation < self._newest - 1


def _generation(key: str) -> int | None:
    head = key.split("/", 1)[0]
    return int(head) if head.isdigit() else None
