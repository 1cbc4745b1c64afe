"""Hooks into a script's own objects and into torch: where a backward pass begins, where a signal can be handled in it,
and what torch.compile leaves alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch._C._dynamo import eval_frame

_eval_frame: Any = eval_frame
"""What torch's own type stubs leave out."""
INTERRUPTIBLE_PARTS: Final = 64
"""Python hooks spread over a backward pass; each costs about a microsecond a step."""
INSIST_FIRST_S: Final = 0.005
INSIST_S: Final = 0.1
INSIST_TIMES: Final = 600


def on_backward(modules: Iterable[torch.nn.Module], callback: Callable[[torch.Tensor], None]) -> None:
    """Call `callback` when the gradient of an output of one of `modules` is ready: the backward pass has begun."""

    def watch(_module: Any, _inputs: Any, outputs: Any) -> None:
        for tensor in tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(callback)

    for module in modules:
        for called in _called(module):
            called.register_forward_hook(watch)


def _called(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module; of a list or a dictionary of modules, which is never called itself, those inside."""
    if isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict):
        for child in module.children():
            yield from _called(child)
    else:
        yield module


def let_signals_in(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Give a signal's handler, which runs only where Python code runs, places in the middle of a backward pass."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained[:: max(1, len(trained) // INTERRUPTIBLE_PARTS)]:
        parameter.register_post_accumulate_grad_hook(lambda _: None)


def untraced(function: Any) -> Any:
    """`function`, into which torch.compile does not look, nor into what it calls, where it compiles a module that calls
    it. What torch.compiler.disable does, without the second that its import of the compiler takes."""
    skip = _eval_frame._FrameAction.SKIP
    _eval_frame.set_code_exec_strategy(function.__code__, _eval_frame._FrameExecStrategy(skip, skip))
    function._torchdynamo_disable = True
    return function


def insist(reached: Callable[[], bool], again: Callable[[], None]) -> None:
    """Call `again` until `reached`, in a thread of its own: after `INSIST_FIRST_S`, then ever less often.

    A collective or a step that begins in that very instant can miss it, a context manager is not interrupted in its own
    code, and what gloo tells nobody of is let go later.
    """

    def run() -> None:
        pause_s = INSIST_FIRST_S
        for _ in range(INSIST_TIMES):
            time.sleep(pause_s)
            if reached():
                return
            again()
            pause_s = min(2 * pause_s, INSIST_S)

    threading.Thread(target=run, name="phoenix-insist", daemon=True).start()


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors of a module's output: one, or any nesting of lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []
