"""Where in the training a fault strikes: the main thread at its next line of code, or a place of the next step.

torch is used only where the script has imported it, and its public hooks only: global ones on modules and optimizers,
and `torch.autograd.backward`, by which every backward pass begins. They are set when an order needs them, for as long.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from chaos.agent.mailbox import SHIELD

SIGNAL: Final = signal.SIGRTMIN + 9
"""Wakes the main thread; chosen away from those that runtimes and schedulers send."""
RETRY_S: Final = 0.002
PLACES: Final = ("forward", "backward", "optimizer")
_UNSAFE: Final = frozenset({"importlib", "threading", "logging", "signal"})
"""Packages of the standard library that hold a lock while they run."""


class Refused(Exception):
    """The order cannot be carried out in this process; the message says why."""


class MainThread:
    """Has the main thread do something at the next line of the training's own code."""

    def __init__(self) -> None:
        shielded = {name.strip() for name in os.environ.get(SHIELD, "").split(",")}
        self._unsafe = _UNSAFE | shielded | {"chaos"}
        self._waiting: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._thread = threading.main_thread()
        signal.signal(SIGNAL, self._on_signal)

    def strike(self, act: Callable[[], None], within_s: float, withdrawn: Callable[[], bool]) -> None:
        """`act` runs in the main thread, and may raise there. Returns as it begins.

        Raises Refused where the main thread was in no code of the training within this time, or until `withdrawn`.
        """
        begun = threading.Event()
        entry = (act, begun)
        self._waiting.append(entry)
        deadline = time.monotonic() + within_s
        while not begun.is_set():
            assert self._thread.ident is not None
            signal.pthread_kill(self._thread.ident, SIGNAL)
            if not begun.wait(RETRY_S) and (withdrawn() or time.monotonic() >= deadline):
                try:
                    self._waiting.remove(entry)
                except ValueError:
                    return  # it has just begun
                raise Refused(f"the main thread ran no code of the training, {_in_vain(withdrawn(), within_s)}")

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if not self._waiting or self._is_unsafe(frame):
            return
        act, begun = self._waiting.popleft()
        begun.set()
        act()

    def _is_unsafe(self, frame: FrameType | None) -> bool:
        """Whether the runtime's code runs, or code with a lock, or a destructor, which would swallow an exception."""
        while frame is not None:
            name = str(frame.f_globals.get("__name__", ""))
            if name == "__main__":
                return frame.f_code.co_name == "__del__"
            if name.partition(".")[0] in self._unsafe or frame.f_code.co_name == "__del__":
                return True
            frame = frame.f_back
        return False


class Place:
    """A place of the training step. `act` is called there, in the main thread, at each visit until `close`."""

    def __init__(self, place: str, act: Callable[..., None]) -> None:
        """`place`: forward | backward | optimizer. Raises Refused without torch."""
        torch = loaded_torch()
        self._act = act
        self._close: list[Callable[[], None]] = []
        if place == "forward":
            hook = torch.nn.modules.module.register_module_forward_pre_hook(self._visited)
            self._close.append(hook.remove)
        elif place == "optimizer":
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._close.append(register_optimizer_step_pre_hook(self._visited).remove)
        else:
            self._close.append(_before(torch.autograd, "backward", self._visited))

    def _visited(self, *visited: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._act(*visited)

    def close(self) -> None:
        """No further visit. May be called twice."""
        while self._close:
            self._close.pop()()


def at_place(names: Sequence[str], act: Callable[..., None], within_s: float, withdrawn: Callable[[], bool]) -> None:
    """`act` runs once, in the main thread, at the first of these places that the training comes to, and may raise.

    It gets what torch gives to its hooks there: the module, or the optimizer, and their arguments.

    Returns as it begins. Raises Refused where it came to none within this time, or until `withdrawn`.
    """
    claim, begun = threading.Lock(), threading.Event()  # whoever has the lock has decided what happens
    places: list[Place] = []

    def visit(*visited: object) -> None:
        if claim.acquire(blocking=False):
            for place in places:
                place.close()
            begun.set()
            act(*visited)

    places += [Place(name, visit) for name in names]
    deadline = time.monotonic() + within_s
    while not begun.wait(10 * RETRY_S):
        if (withdrawn() or time.monotonic() >= deadline) and claim.acquire(blocking=False):
            for place in places:
                place.close()
            raise Refused(f"the training came to no {' or '.join(names)}, {_in_vain(withdrawn(), within_s)}")


def _in_vain(withdrawn: bool, within_s: float) -> str:
    return "until the order was taken back" if withdrawn else f"for {within_s:g} s"


def loaded_torch() -> Any:
    """The torch of the script. Raises Refused where it has none: loading it would take seconds and change the job."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "autograd"):
        raise Refused("the script has not imported torch, so it has no training step")
    return torch


def _before(owner: Any, name: str, visit: Callable[[], None]) -> Callable[[], None]:
    """Call `visit` before each call of this function; the answer undoes it."""
    original = getattr(owner, name)

    def visited(*args: Any, **kwargs: Any) -> Any:
        visit()
        return original(*args, **kwargs)

    setattr(owner, name, visited)

    def undo() -> None:
        if getattr(owner, name) is visited:  # else somebody has wrapped it since, and keeps it: it does nothing more
            setattr(owner, name, original)

    return undo
