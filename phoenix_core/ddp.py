"""DistributedDataParallel after a broken step: the one place that knows its private parts.

An exception in mid backward leaves DDP's reducer unusable, and a spare's fresh one would cut the gradients
into other buckets than the survivors' (which aborts the process). More than that: where a gradient lies
in its bucket decides the order in which a ring all-reduce adds, so equality in every bit needs the layout of the
undisturbed run. Hence every rank gets a new reducer with the layout that the survivors had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Layout = list[list[int]]
"""Per bucket, in the order of reduction: the indices of its parameters among those that need gradients."""


_reduced: WeakKeyDictionary[DistributedDataParallel, Any] = WeakKeyDictionary()


def _parameters(module: DistributedDataParallel) -> Any:
    """Those that the module reduces, and which have sparse gradients: what needed gradients when it was wrapped.

    Some may have been frozen or thawed since, which the reducer of the undisturbed run does not notice.
    """
    if module not in _reduced:
        inside = _bucketed(module)
        with _thawed(inside):
            found = zip(*module._build_params_for_reducer(), strict=True)
            known = {id(parameter) for parameter in inside}
            parameters, sparse = zip(*((p, is_sparse) for p, is_sparse in found if id(p) in known), strict=True)
        _reduced[module] = list(parameters), list(sparse)
    return _reduced[module]


def _bucketed(module: DistributedDataParallel) -> list[Any]:
    reducer: Any = module.reducer
    try:
        return [parameter for bucket in reducer._get_zeros_like_grad_buckets() for parameter in bucket.parameters()]
    except RuntimeError:  # a bucket of sparse gradients has nothing to show before its first reduction
        return [parameter for parameter in module.parameters() if parameter.requires_grad]


@contextmanager
def _thawed(parameters: Sequence[Any]) -> Iterator[None]:
    """A reducer wants parameters that need gradients."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def layout(module: DistributedDataParallel) -> Layout:
    """The buckets that the module's next backward pass will use."""
    index = {id(parameter): i for i, parameter in enumerate(_parameters(module)[0])}
    reducer: Any = module.reducer
    return [[index[id(p)] for p in bucket.parameters()] for bucket in reducer._get_zeros_like_grad_buckets()]


def flags(module: DistributedDataParallel) -> bool:
    """Whether the next forward pass broadcasts buffers: it does so only after a step that reduced gradients."""
    return bool(module.require_forward_param_sync)


def set_flags(module: DistributedDataParallel, forward_sync: bool) -> None:
    module.require_forward_param_sync = forward_sync
    module.require_backward_grad_sync = True  # an interrupted `no_sync` may have left it


def hook_with_memory(module: DistributedDataParallel) -> str:
    """The type of what a communication hook carries from step to step (PowerSGD's errors); empty where none does."""
    states = [state for _, state in getattr(module, "_comm_hooks", []) if state is not None]
    names = [type(state).__name__ for state in states if not isinstance(state, dist.ProcessGroup)]
    return next((name for name in names if name != "_AllreduceUpcastHookState"), "")  # of DDP's own mixed precision


def settled(module: DistributedDataParallel) -> bool:
    """Whether the module keeps the buckets that it has now."""
    rebuilds = module.static_graph or not module.find_unused_parameters
    return bool(module._has_rebuilt_buckets) or not rebuilds


def settle(module: DistributedDataParallel) -> None:
    """Let DDP move to the layout that it would take on before its second step; nothing if it has.

    Call only after a whole backward pass and with the group in its local state: the indices that rank 0 would
    broadcast are the same on every rank that executes the same step.
    """
    reducer: Any = module.reducer
    if not settled(module):
        # RuntimeError: this module was broken in its own first backward pass, and keeps its first layout.
        with suppress(RuntimeError):
            module._has_rebuilt_buckets = reducer._rebuild_buckets()


def reset(module: DistributedDataParallel, buckets: Layout) -> None:
    """Give the module a reducer in its initial state with the given buckets. Takes 4-9 ms for 10 M parameters."""
    old: Any = module.reducer
    old._remove_autograd_hooks()
    parameters, sparse = _parameters(module)
    distributed: Any = dist
    original = distributed._compute_bucket_assignment_by_size

    def assignment(tensors: Any, limits: Sequence[int], *rest: Any) -> tuple[Layout, list[int]]:
        # The helper reverses what it is given, since it expects the order of the forward pass.
        return list(reversed(buckets)), [max(limits)] * len(buckets)

    distributed._compute_bucket_assignment_by_size = assignment
    try:
        with _thawed(parameters):
            names = module._build_debug_param_to_name_mapping(parameters)
            module._ddp_init_helper(parameters, sparse, names, module.static_graph)
    finally:
        distributed._compute_bucket_assignment_by_size = original
    module._has_rebuilt_buckets = False
    cast("Any", module)._static_graph_delay_allreduce_enqueued = False
    if module.static_graph:
        module.reducer._set_static_graph()
    for hook, state in getattr(module, "_comm_hooks", []):
        distributed._register_comm_hook(module.reducer, state, hook)


class Buckets:
    """Which buckets the next step of each of a rank's modules uses, through steps and recoveries."""

    def __init__(self, modules: Callable[[], list[DistributedDataParallel]]) -> None:
        self._modules = modules
        self._settled: list[Layout] | None = None
        self._reset_at = 0

    def settled(self) -> list[Layout] | None:
        """Those of every step from the next on; None where DDP has still to move to them.

        The first time it allocates as much as all gradients together.
        """
        modules = self._modules()
        if self._settled is None and all(map(settled, modules)):
            self._settled = [layout(module) for module in modules]
        return self._settled

    def now(self) -> list[Layout]:
        """Those that the modules have now."""
        return self.settled() or [layout(module) for module in self._modules()]

    def of_next_step(self, live: int) -> list[Layout]:
        """Those of the step after boundary `live` in the undisturbed run. Call with the groups in their local state."""
        if self._settled is not None:
            return self._settled
        if live > self._reset_at:
            for module in self._modules():
                settle(module)
        return [layout(module) for module in self._modules()]

    def put_back(self, layouts: Sequence[Layout], boundary: int) -> None:
        """The next step, from `boundary` on, uses `layouts`."""
        for module, buckets in zip(self._modules(), layouts, strict=True):
            reset(module, buckets)
        # DDP comes to the same buckets again whenever it has executed the same step.
        self._settled = list(layouts) if boundary > 0 else None
        self._reset_at = boundary
