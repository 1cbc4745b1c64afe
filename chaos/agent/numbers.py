"""Wrong numbers: one bit of a gradient, of a parameter or of a snapshot that is kept for another rank; or a NaN."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
from collections.abc import Callable
from typing import Any, Final

from chaos.agent.listener import Given
from chaos.agent.mailbox import SNAPSHOTS
from chaos.agent.running import Refused, at_place, loaded_torch

_BYTES_HEADER: Final = bytes.__basicsize__ - 1


def flip_gradient(given: Given) -> None:
    """One bit of one element, after the reduction and before the optimizer."""
    _in_optimizer(given, lambda parameter: parameter.grad, _flip)


def flip_parameter(given: Given) -> None:
    """One bit of one element, before the optimizer, which then goes on from it."""
    _in_optimizer(given, lambda parameter: parameter, _flip)


def nan_gradient(given: Given) -> None:
    """One element becomes NaN, after the reduction and before the optimizer."""
    _in_optimizer(given, lambda parameter: parameter.grad, _nan)


def flip_snapshot(given: Given) -> None:
    """One bit of the newest state of each other rank (`of_rank`: of this one) that is kept in this process."""
    draw, wanted = _draw(given), given.order.params.get("of_rank")
    own = int(os.environ.get("RANK", "-1"))
    kept = [
        (states, owner, max(boundaries))
        for states in _kept_states()
        for owner, boundaries in states.boundaries().items()
        if (owner != own if wanted is None else owner == wanted)
    ]
    if not kept:
        raise Refused("no state of such a rank is kept in this process now")
    flipped = []
    for states, owner, boundary in kept:
        payload = states.get(owner, boundary)
        place, bit = draw.randrange(len(payload)), draw.randrange(8)
        _flip_byte(payload, place, bit)
        flipped.append({"owner": owner, "boundary": boundary, "byte": place, "bit": bit, "of": len(payload)})
    given.answer(flipped=flipped)


def _kept_states() -> list[Any]:
    """The objects that keep snapshots, as the runtime's adapter names their class. Raises Refused."""
    module, _, name = os.environ.get(SNAPSHOTS, "").partition(":")
    kind = getattr(sys.modules.get(module), name, None) if module else None
    if kind is None:
        raise Refused("this runtime keeps no snapshots in memory that its adapter knows of")
    return [one for one in gc.get_objects() if isinstance(one, kind)]


def _flip_byte(payload: bytes | memoryview, place: int, bit: int) -> None:
    if isinstance(payload, bytes):  # small states; Python would not let them be changed, failing memory does not ask
        cell = ctypes.c_ubyte.from_address(id(payload) + _BYTES_HEADER + place)
        cell.value ^= 1 << bit
    else:
        payload[place] ^= 1 << bit


Change = Callable[[Any, random.Random, Given], dict[str, object]]


def _in_optimizer(given: Given, tensor_of: Callable[[Any], Any], change: Change) -> None:
    draw, torch = _draw(given), loaded_torch()

    def act(*visited: Any) -> None:
        try:
            given.answer(**changed(visited[0]))
        except Refused as refusal:
            given.refuse(str(refusal))
        except Exception as error:  # the training calls us: it may meet the wrong number, and nothing else of ours
            given.refuse(f"the agent failed: {type(error).__name__}: {error}")

    def changed(optimizer: Any) -> dict[str, object]:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        there = [(index, tensor_of(one)) for index, one in enumerate(parameters)]
        full = [(index, _local(one)) for index, one in there if one is not None and _local(one).numel()]
        if not full:
            raise Refused("the optimizer that came first has no such numbers in this step")
        index, tensor = draw.choice(full)
        element = tuple(draw.randrange(size) for size in tensor.shape)
        with torch.no_grad():
            return {"parameter": index, "element": list(element), **change(tensor[element], draw, given)}

    at_place(("optimizer",), act, given.order.within_s, lambda: given.released)


def _local(tensor: Any) -> Any:
    """The part that this rank holds, where it is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _flip(cell: Any, draw: random.Random, given: Given) -> dict[str, object]:
    """`cell` is a view of one element."""
    torch, bits = loaded_torch(), 8 * cell.element_size()
    whole = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    wanted = given.order.params.get("bit")
    bit = draw.randrange(bits) if wanted is None else int(str(wanted))
    if bit >= bits:
        raise Refused(f"bit {bit} was asked for, and an element ({cell.dtype}) has the bits 0..{bits - 1}")
    before = repr(cell.item())
    cell.view(whole).bitwise_xor_(1 << bit if bit < bits - 1 else -(1 << bit))
    return {"bit": bit, "before": before, "after": repr(cell.item())}


def _nan(cell: Any, _draw: random.Random, _given: Given) -> dict[str, object]:
    before = repr(cell.item())
    cell.fill_(float("nan"))
    return {"before": before, "after": repr(cell.item())}


def _draw(given: Given) -> random.Random:
    return random.Random(str(given.order.params.get("seed", "")))
