"""The n-th collective of this process hangs, is skipped, or fails: its calls are wrapped from outside.

A process group written in Python is wrapped in its class, which torch's C++ code calls as well. Of one written in C++
only calls by Python code can be seen: those of torch.distributed's functions, and DDP's by a communication hook, which
DDP takes once, also between two steps.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from chaos.agent.acts import error_of
from chaos.agent.listener import Given
from chaos.agent.native import Held, stay
from chaos.agent.running import Refused, at_place, loaded_torch

METHODS: Final = (
    "all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather", "allgather_coalesced",
    "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "scatter",
    "_allgather_base", "_reduce_scatter_base", "_all_gather_base",
)  # fmt: skip
"""Collectives as methods of a process group; messages between two ranks are none."""
FUNCTIONS: Final = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
)  # fmt: skip


class _Count:
    """Lets all collectives through but the one that was ordered."""

    def __init__(self, nth: int, strike: Callable[[str, Any], Any]) -> None:
        self._left = nth
        self._strike = strike
        self._lock = threading.Lock()
        self._inside = threading.local()

    def through(self, name: str, call: Callable[[], Any], outputs: Any) -> Any:
        """One that is called by another one (torch's function by torch's method) is counted once."""
        if getattr(self._inside, "deep", False):
            return call()
        with self._lock:
            self._left -= 1
            struck = self._left == 0
        self._inside.deep = True
        try:
            if struck and (answer := self._strike(name, outputs)) is not None:
                return answer
            return call()
        finally:
            self._inside.deep = False


def strike_collective(given: Given) -> None:
    """`how` (hang | skip | fail), `nth` from now on, `error`, `text`; a hang ends after its time to live."""
    params, begun = given.order.params, threading.Event()
    torch, how = loaded_torch(), str(params["how"])
    if not torch.distributed.is_initialized():
        raise Refused("this process has no process group yet")
    error = error_of(params) if how == "fail" else None

    def strike(name: str, outputs: Any) -> Any:
        if given.released:
            return None
        begun.set()
        given.answer(collective=name, how=how)
        if error is not None:
            raise error
        if how == "skip":
            return _skipped(torch, outputs)
        given.end(hung_ns=stay(given.until, given.page, Held.RELEASED))
        return None

    undo = _wrap_all(torch, _Count(int(str(params["nth"])), strike), given)
    try:
        waited_s = 0.0
        while not begun.wait(0.02) and not given.released and waited_s < given.order.within_s:
            waited_s += 0.02
        if not begun.is_set():
            given.page[0] = 1  # whoever comes now goes through
            raise Refused(f"there were fewer than {params['nth']} collectives in {given.order.within_s:g} s")
    finally:
        for one in undo:
            one()


def _wrap_all(torch: Any, count: _Count, given: Given) -> list[Callable[[], None]]:
    group = type(torch.distributed.group.WORLD)
    if group is not torch.distributed.ProcessGroup:
        return [_wrap(group, name, count, skip=1) for name in METHODS if name in vars(group)]
    refused: list[Refused] = []
    hooked = threading.Event()

    def hook_all(*_: object) -> None:
        """Between two backward passes, in which DDP's C++ code would meet a hook that it did not begin with."""
        try:
            for wrapped in [one for one in gc.get_objects() if isinstance(one, kind)]:
                _hook(torch, wrapped, count)
        except Refused as refusal:
            refused.append(refusal)
        finally:
            hooked.set()

    kind = torch.nn.parallel.DistributedDataParallel
    if any(isinstance(one, kind) for one in gc.get_objects()):
        at_place(("forward",), hook_all, given.order.within_s, lambda: given.released)
        hooked.wait(given.order.within_s)
    if refused:
        raise refused[0]
    return [_wrap(torch.distributed, name, count, skip=0) for name in FUNCTIONS if hasattr(torch.distributed, name)]


def _wrap(owner: Any, name: str, count: _Count, *, skip: int) -> Callable[[], None]:
    """`skip` arguments come before those of the collective (the group itself)."""
    original = getattr(owner, name)

    def through(*args: Any, **kwargs: Any) -> Any:
        return count.through(name, lambda: original(*args, **kwargs), args[skip : skip + 1])

    setattr(owner, name, through)

    def undo() -> None:
        if getattr(owner, name) is through:
            setattr(owner, name, original)

    return undo


_hooked: WeakKeyDictionary[Any, list[_Count]] = WeakKeyDictionary()
"""The count that each hooked DDP asks now: a hook cannot be taken off, nor be set a second time."""


def _hook(torch: Any, wrapped: Any, count: _Count) -> None:
    """DDP's own all-reduce as a hook of ours, which it keeps: the same mean by the same collective."""
    if wrapped in _hooked:
        _hooked[wrapped][:] = [count]
        return
    size, group, now = torch.distributed.get_world_size(wrapped.process_group), wrapped.process_group, [count]

    def reduce(_state: object, bucket: Any) -> Any:
        buffer = bucket.buffer().mul_(1.0 / size)
        call = partial(torch.distributed.all_reduce, buffer, group=group, async_op=True)
        work = now[0].through("DDP's all_reduce", call, [[buffer]])
        return work.get_future().then(lambda future: future.value()[0])

    reduce.__annotations__.clear()  # torch compares them with its own classes, and here they are texts
    try:
        wrapped.register_comm_hook(None, reduce)
    except RuntimeError as error:
        raise Refused(f"the gradients of this DDP go through a hook already: {error}") from error
    _hooked[wrapped] = now


def _skipped(torch: Any, outputs: Any) -> Any:
    """A collective that says it has ended, and has done nothing."""
    tensors = [one for one in _flat(outputs) if isinstance(one, torch.Tensor)]
    future = torch.futures.Future()
    future.set_result(tensors)

    class Skipped(torch.distributed.distributed_c10d.Work):  # type: ignore[misc]
        def wait(self, timeout: object = None) -> bool:
            return True

        def get_future(self) -> Any:
            return future

        def is_completed(self) -> bool:
            return True

        def is_success(self) -> bool:
            return True

        def result(self) -> Any:
            return tensors

        def synchronize(self) -> None:
            """There is nothing to wait for."""

    return Skipped()


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [one for part in value for one in _flat(part)]
    return [value]
