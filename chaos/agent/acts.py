"""What a process can be told to do. Each act answers immediately before it happens, or raises Refused."""

from __future__ import annotations

import builtins
import ctypes
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from chaos.agent.listener import Act, Given
from chaos.agent.native import Held, stay
from chaos.agent.running import PLACES, Place, Refused, at_place


def raise_error(given: Given) -> None:
    """`error` (class), `text`, `code` (an attribute error_code, as torch's own), `place` (now, next, or a place)."""
    error = error_of(given.order.params)

    def act(*_: object) -> None:
        given.answer(error=f"{type(error).__name__}: {error}")
        raise error

    once(given, str(given.order.params.get("place", "next")), act)


def error_of(params: Mapping[str, object]) -> Exception:
    """The exception that the parameters describe. Raises Refused where there is no such class.

    Whoever may ask for a fault may not run code of their choice: nothing but a class of exceptions is ever called,
    and no module but torch is imported for it.
    """
    name = str(params.get("error", "RuntimeError"))
    module, _, attribute = name.rpartition(".")
    if module == "torch":
        importlib.import_module(module)
    holder = sys.modules.get(module) if module else builtins
    if holder is None:
        raise Refused(f"there is no exception {name}: this process has not imported {module}")
    kind = getattr(holder, attribute, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise Refused(f"{name} is no class of exceptions")
    try:
        error = kind(str(params.get("text", "")))
    except Exception as trouble:
        raise Refused(f"the exception {name} does not take a text alone: {trouble}") from trouble
    if params.get("code") is not None:
        error.error_code = int(str(params["code"]))  # type: ignore[attr-defined]
    return error


def once(given: Given, place: str, act: Callable[..., None]) -> None:
    """`act` in the main thread: at its next line (`now`), or at the first visit of a place (`next`: of any)."""
    if place == "now":
        given.main.strike(act, given.order.within_s, lambda: given.released)
    else:
        at_place(PLACES if place == "next" else (place,), act, given.order.within_s, lambda: given.released)


def segfault(given: Given) -> None:
    """A write to address 0."""
    given.answer()
    ctypes.memset(0, 0, 1)


def abort(given: Given) -> None:
    """As a failed assertion in C++ code ends a process."""
    given.answer()
    os.abort()


def hold_gil(given: Given) -> None:
    """`busy`: whether the holder computes, or sleeps. No other thread runs meanwhile, heartbeats included."""
    held = Held.BUSY if given.order.params.get("busy", True) else Held.ASLEEP
    until = given.until
    given.answer(held=held.value)
    given.end(held_ns=stay(until, given.page, held))


def hang(given: Given) -> None:
    """The main thread stays in native code; other threads run on, unless `gil` is held."""
    held = Held.ASLEEP if given.order.params.get("gil", False) else Held.RELEASED

    def act() -> None:
        until = given.until
        given.answer(held=held.value)
        given.end(hung_ns=stay(until, given.page, held))

    once(given, "now", act)


def straggle(given: Given) -> None:
    """`delay_s` more in each step, in its backward pass; with `gil` no other thread runs meanwhile."""
    delay_ns = round(float(str(given.order.params["delay_s"])) * 1e9)
    held = Held.ASLEEP if given.order.params.get("gil", False) else Held.RELEASED
    until, steps, over = given.until, 0, threading.Event()

    def visit(*_: object) -> None:
        nonlocal steps
        if over.is_set() or given.released:
            return
        given.answer(place="backward")
        steps += 1
        stay(min(until, time.monotonic_ns() + delay_ns), given.page, held)

    place = Place("backward", visit)
    while time.monotonic_ns() < until and not given.released:
        over.wait(0.01)
    over.set()
    place.close()
    given.refuse("the training came to no backward pass in time")
    given.end(steps=steps)


def eat(given: Given) -> None:
    """Ask for `bytes` of memory, and write to all of it, a megabyte at a time; keep it until it is given back."""
    until, eaten = given.until, []
    given.answer()
    for _ in range(int(str(given.order.params["bytes"])) >> 20):
        if given.released or time.monotonic_ns() > until:
            break
        eaten.append(b"\1" * (1 << 20))
    while not given.released and time.monotonic_ns() < until:
        time.sleep(0.05)
    given.end(bytes=len(eaten) << 20)


class _SlowFiles:
    """An audit hook of Python's, which is called before a file is opened, and which nobody can take off again."""

    def __init__(self) -> None:
        self.below = ""
        self.delay_s = 0.0
        self.operations = 0
        self.over = threading.Event()
        self.over.set()

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.over.is_set() or event not in ("open", "os.rename", "os.remove", "os.mkdir"):
            return
        path = arguments[0]
        if isinstance(path, str | bytes) and os.fsdecode(path).startswith(self.below):
            self.operations += 1
            self.over.wait(self.delay_s)


_slow_files: list[_SlowFiles] = []


def slow_files(given: Given) -> None:
    """`delay_s` more for each file below the directory `checkpoints` that is opened, renamed, made or removed."""
    if not _slow_files:
        _slow_files.append(_SlowFiles())
        sys.addaudithook(_slow_files[0])
    slow, until = _slow_files[0], given.until
    if not slow.over.is_set():
        raise Refused("the disk of this process is slow already")
    slow.below, slow.operations = str(given.order.params["checkpoints"]) + os.sep, 0
    slow.delay_s = float(str(given.order.params["delay_s"]))
    given.answer(below=slow.below)
    slow.over.clear()
    while time.monotonic_ns() < until and not given.released:
        time.sleep(0.01)
    slow.over.set()
    given.end(operations=slow.operations)


ACTS: Final[dict[str, Act]] = {
    "raise": raise_error,
    "segfault": segfault,
    "abort": abort,
    "hold_gil": hold_gil,
    "hang": hang,
    "straggle": straggle,
    "eat": eat,
    "slow_files": slow_files,
}
"""The acts that need no more than this file; `listener` knows the others' modules too."""
