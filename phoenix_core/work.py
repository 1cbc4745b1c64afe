"""Collectives in flight: for gloo a Work whose end does not depend on gloo noticing its sockets, for NCCL a view.

gloo tells whoever waits for a transfer that its connection broke, unless the transfer is in the middle of its bytes:
that one is on none of the lists that gloo's `Pair::signalException` goes through, and waits for its timeout. So every
wait is for the future of gloo's Work, which somebody else can complete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.futures import Future

from phoenix_core.errors import GenerationSuperseded
from phoenix_core.hooks import tensors_in

COLLECTIVE_TIMEOUT: Final = timedelta(days=365)
"""Never: a hang is found by the coordinator, and a collective that was let go must not end a second time."""

_Work: Any = dist.distributed_c10d.Work
MESSAGES: Final = frozenset(("send", "recv", "recv_anysource"))
WITHOUT_FUTURE: Final = MESSAGES | {"reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"}
"""Those for which gloo has none: a part of their work is done by who waits for them."""
ALIKE: Final = frozenset(("allreduce", "allreduce_coalesced", "broadcast", "reduce"))
"""Those to which every member brings as many numbers."""
DEVICE_POLL_S: Final = 50e-6
_waiters: WeakSet[threading.Thread] = WeakSet()


def described(name: str, args: tuple[Any, ...]) -> str:
    """Words for a collective that are equal on all members that meet in it, and seldom on those that do not."""
    return f"{name} {sum(tensor.numel() for tensor in tensors_in(args))}" if name in ALIKE else name


class BreakableWork(_Work):  # type: ignore[misc]  # torch's stub has no constructor for it
    """A collective in flight. `let_go` ends every wait for it, from any thread."""

    def __init__(self, inner: Any, name: str, outputs: object) -> None:
        """`inner` is gloo's Work of the collective `name`, which writes the tensors in `outputs`."""
        super().__init__()
        self._inner, self._name, self._outputs = inner, name, outputs
        self._let_go = False
        self._future = _awaited(inner) if name in WITHOUT_FUTURE else inner.get_future()

    def let_go(self) -> None:
        """Complete it as it is. The tensors hold anything: nobody may commit them.

        With a value, not an error: DDP in C++ takes only errors that C++ made.
        """
        self._let_go = True
        with suppress(RuntimeError):  # it has ended meanwhile
            self._future.set_result(tensors_in(self._outputs))

    def until_executed(self, superseded: Callable[[], bool]) -> None:
        """Nothing: whoever uses its tensors has waited for it."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once it has ended. Raises GenerationSuperseded where it was let go, RuntimeError where it broke."""
        if timeout:
            self._inner.wait(timeout)
        self._future.wait()
        if self._let_go:
            raise GenerationSuperseded(f"{self._name} was left: its generation is superseded")
        return True

    def get_future(self) -> Future[Any]:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and not self._let_go and bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def result(self) -> list[torch.Tensor]:
        return self._future.value() or []

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())


class DeviceWork:
    """What the runtime asks of a collective on a GPU; torch itself gets NCCL's own Work.

    Waiting for that one only makes the stream wait. So the processor may be far ahead: a step's optimizer must not be
    asked of the GPU before its reductions are known to have ended well, since nobody could take it back.

    Other threads look at what NCCL's watchdog has found, up to 0.1 s late. They never ask CUDA: that question can hang,
    with the interpreter's lock held, while the training thread waits for a stream that a lost peer keeps busy.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name
        self._found = inner.get_future_result()
        self._let_go = False

    def let_go(self) -> None:
        """Nobody asks for it any more: the abort of its communicator ends it, or nothing does."""
        self._let_go = True

    def is_completed(self) -> bool:
        return self._let_go or self._found.done()

    def until_executed(self, superseded: Callable[[], bool]) -> None:
        """Training thread: return once the GPU has executed it.

        Raises GenerationSuperseded where an abort may have ended it, and what torch raises of the device.
        """
        while self._name not in MESSAGES and not self._inner.is_completed():
            if superseded():
                break
            time.sleep(DEVICE_POLL_S)
        if superseded():
            raise GenerationSuperseded(f"{self._name} was left: its generation is superseded")


def _awaited(inner: Any) -> Future[Any]:
    """A future that ends with `inner`, for which a thread of its own waits."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            inner.wait(COLLECTIVE_TIMEOUT)  # else a message has only the time that its group had for its forming
        except RuntimeError as error:
            outcome: Any = future.set_exception, error
        else:
            outcome = future.set_result, []
        with suppress(RuntimeError):  # let go meanwhile
            outcome[0](outcome[1])

    waiter = threading.Thread(target=run, name="phoenix-work", daemon=True)
    _waiters.add(waiter)
    waiter.start()
    return future


def part(limit_s: float) -> None:
    """Before the process ends, and after its groups have: let who waits for them come back, for `limit_s` in all.

    A thread that comes back from gloo while the interpreter ends aborts the process; one that never does is no harm.
    """
    deadline = time.monotonic() + limit_s
    for waiter in list(_waiters):
        waiter.join(max(0.0, deadline - time.monotonic()))
