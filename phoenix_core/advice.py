"""What a script should know about itself, said once per process on standard error."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from typing import Final

_said: set[str] = set()

for_the_job: Final[deque[str]] = deque()
"""What was said and the job's terminal has not been told yet: the heartbeat takes it along. A queue, as a training
thread may be interrupted anywhere and must not be in the middle of a message then."""

LATE_COLLECTIVE: Final = (
    "this script calls a collective after optimizer.step() inside the step. A failure while all ranks wait there "
    "leaves nobody with a whole state. Move it before optimizer.step()."
)
LATE_DRAW: Final = (
    "this script draws random numbers after a step's gradients are ready. If a rank dies in the few milliseconds "
    "after, its replacement repeats those draws. Draw at the start of the step instead."
)
LATE_CHANGE: Final = (
    "this script has begun to change random numbers, buffers or other state of its own between its gradients and "
    "optimizer.step(), which no rank did in the first step. If a rank dies in the few milliseconds after, its "
    "replacement may have what was before. Do it in every step, or before the backward pass."
)
GROUP_IN_LOOP: Final = (
    "a process group was made in the loop over steps(): a replacement could not know of it, and the others would wait "
    "for it there. Make all groups before the loop, on all ranks."
)
EARLY_BATCH: Final = (
    "this script has taken a batch before the loop over steps(). What is still in its hands then, a replacement does "
    "not have. Take each batch inside the step that uses it."
)
EARLY_CHANGE: Final = (
    "this script changes protected parameters before a protected optimizer's step(). If a rank dies in such a step the "
    "others execute it again and change them twice. Do it in or after optimizer.step()."
)
SWAPPED: Final = (
    "this script had other values in its protected parameters when a step broke before its optimizer ran (an average "
    "for an evaluation, swapped in by `.data`?): this rank's state is given up. Evaluate with "
    "torch.func.functional_call or a copy of the model; change parameters only in or after optimizer.step()."
)
CHANGED_OUTSIDE: Final = (
    "a step broke, and what this script's loop did outside of `with step:` then changed parameters that it had not "
    "changed there before: this rank has changed them once too often. Move it inside, after optimizer.step()."
)
COPIES: Final = (
    "{} has parameters that require gradients, but no DistributedDataParallel keeps them equal: each rank sends its "
    "whole state to a peer at every step. If it is a copy (an average of the weights) call requires_grad_(False) on it."
)
TWINS_DIFFER: Final = (
    "replicas of this job hold different parameters or optimizer state, although their layout says that they are equal "
    "(were they seeded differently?). Snapshots travel whole."
)


def say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        for_the_job.append(text)
        tell(f"phoenix: {text}")


def tell(text: str) -> None:
    """Say it on standard error, if that can be written: no job may end because its terminal or its disk is gone."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def shortened(text: str, limit: int = 500) -> str:
    """An error's text as it is passed on: some of torch's fill pages, and the worker's own output has all of it."""
    return text if len(text) <= limit else f"{text[:limit]} ..."
