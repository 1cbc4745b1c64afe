"""The thread that takes orders, asleep in the kernel until one comes."""

from __future__ import annotations

import json
import mmap
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chaos.agent.mailbox import Json, Order, Slot, box_of
from chaos.agent.running import MainThread, Refused
from chaos.procfs import start_ticks
from chaos.watch import inotify_on

_MOVED_TO: Final = 0x80
_HEADER: Final = struct.Struct("iIII")


class Given:
    """An order that this process has taken, as the acts see it."""

    def __init__(self, slot: Slot, order: Order, main: MainThread) -> None:
        self.order = order
        self.main = main
        self._slot = slot
        self._page = slot.page()
        self._answered = False
        self._ended = False

    @property
    def page(self) -> mmap.mmap:
        """Its first byte turns 1 when the fault is to end."""
        return self._page

    @property
    def released(self) -> bool:
        return self._page[0] == 1

    @property
    def until(self) -> int:
        """When what lasts ends by itself (monotonic ns, from now on)."""
        return time.monotonic_ns() + round((self.order.ttl_s or 0.0) * 1e9)

    def answer(self, **proof: object) -> None:
        """It happens now. Called immediately before the act, since after it nobody may be left to say so."""
        if not self._answered:
            self._answered = True
            self._slot.write("answer", {"at": time.monotonic_ns(), "proof": proof})

    def refuse(self, reason: str) -> None:
        if not self._answered:
            self._answered = True
            self._slot.write("answer", {"refused": reason})

    def end(self, **seen: object) -> None:
        """What lasted is over."""
        if not self._ended:
            self._ended = True
            self._slot.write("ended", seen)


Act = Callable[[Given], None]


class Listener:
    """Takes orders for this process. Each is carried out in a thread of its own; most of them need the main one."""

    def __init__(self, directory: Path, acts: Callable[[], dict[str, Act]] | None = None) -> None:
        ticks = start_ticks(os.getpid())
        assert ticks is not None
        self._box = box_of(directory, os.getpid(), ticks)
        self._acts = acts or _all_acts
        self._main = MainThread()

    def start(self) -> None:
        """From the main thread, before the script."""
        self._box.mkdir(parents=True)
        watch = inotify_on(self._box, _MOVED_TO)
        if watch is None:
            print("chaos.agent: this kernel gives no inotify watch; no fault can be ordered here", file=sys.stderr)
            self._box.rmdir()  # who finds no box says so, in place of an order that nobody reads
            return
        threading.Thread(target=self._listen, args=(watch,), name="chaos-agent", daemon=True).start()

    def _listen(self, watch: int) -> None:
        while True:
            select.select([watch], [], [])
            for number in sorted(_orders(os.read(watch, 65536))):
                slot = Slot(self._box, number)
                if slot.take("taken"):
                    given = Given(slot, Order.from_json(json.loads(slot.path("taken").read_bytes())), self._main)
                    threading.Thread(target=self._carry_out, args=(given,), name="chaos-act", daemon=True).start()

    def _carry_out(self, given: Given) -> None:
        act = self._acts().get(given.order.act)
        try:
            if act is None:
                raise Refused(f"this agent knows no {given.order.act}")
            act(given)
        except Refused as refusal:
            given.refuse(str(refusal))
        except Exception as error:
            given.refuse(f"the agent failed: {type(error).__name__}: {error}")


def _orders(block: bytes) -> set[str]:
    """The numbers of the orders that inotify names."""
    found, position = set(), 0
    while position < len(block):
        length = _HEADER.unpack_from(block, position)[3]
        position += _HEADER.size
        name = block[position : position + length].rstrip(b"\0").decode(errors="replace")
        position += length
        if name.endswith(".order"):
            found.add(name.removesuffix(".order"))
    return found


def _all_acts() -> dict[str, Act]:
    """Loaded when the first order comes: a process that gets none pays nothing for them."""
    from chaos.agent import acts, collectives, numbers

    data = {
        "flip_gradient": numbers.flip_gradient,
        "flip_parameter": numbers.flip_parameter,
        "nan_gradient": numbers.nan_gradient,
        "flip_snapshot": numbers.flip_snapshot,
    }
    return {**acts.ACTS, "strike_collective": collectives.strike_collective, **data}


__all__ = ["Act", "Given", "Json", "Listener"]
