"""The rendezvous store's server: keys that appear once, and readers that wait for them.

Keys begin with their generation (`"7/..."`), so that what an old generation left can be forgotten.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

from phoenix_core.wire import encode, messages


class StoreServer:
    def __init__(self, token: str) -> None:
        self._token = token
        self._values: dict[str, str] = {}
        self._arrival = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client: a hello with the job's token, then requests, answered in order."""
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
                await self._set(key, message["value"])
                return {}
            case "add":
                total = int(self._values.get(key, "0")) + message["amount"]
                await self._set(key, str(total))
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
                    await self._set(key, message["value"])
                return {"value": self._values.get(key)}
            case "count":
                return {"value": len(self._values)}
        return {"error": f"unknown operation {message['op']}"}

    async def _set(self, key: str, value: str) -> None:
        self._values[key] = value
        async with self._arrival:
            self._arrival.notify_all()

    async def _wait(self, keys: list[str], timeout_s: float) -> bool:
        """True once all keys exist, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s), self._arrival:
                await self._arrival.wait_for(lambda: all(key in self._values for key in keys))
        except TimeoutError:
            return False
        return True

    def forget_before(self, generation: int) -> None:
        """Drop what generations older than the previous one left behind."""
        for key in [k for k in self._values if k.split("/", 1)[0].isdigit()]:
            if int(key.split("/", 1)[0]) < generation - 1:
                del self._values[key]
