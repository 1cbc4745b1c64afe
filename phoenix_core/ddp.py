"""DistributedDataParallel after a broken step: the one place that knows its private parts.

An exception in mid backward leaves DDP's reducer unusable, and a spare's fresh one would cut the gradients
into other buckets than the survivors' (which aborts the process). More than that: where a gradient lies
in its bucket decides the order in which a ring all-reduce adds, so equality in every bit needs the layout of the
undisturbed run. Hence every rank gets a new reducer with the layout that the survivors had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Layout:
    """The buckets of one module's next backward pass."""

    buckets: list[list[int]]
    """Each in the order of reduction: the indices of its parameters among those that need gradients."""
    settled: bool
    """Whether they are those of all later passes; else DDP moves to others once the module has executed one."""


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
    """As the module is now. Allocates as much as all gradients together for a moment."""
    index = {id(parameter): i for i, parameter in enumerate(_parameters(module)[0])}
    reducer: Any = module.reducer
    try:
        buckets = [[index[id(p)] for p in bucket.parameters()] for bucket in reducer._get_zeros_like_grad_buckets()]
    except RuntimeError:  # as above
        buckets = _first_buckets(module)
    return Layout(buckets, _settled(module))


def _first_buckets(module: DistributedDataParallel) -> list[list[int]]:
    """Those that it was made with, as it computes them."""
    parameters, sparse = _parameters(module)
    how = {"static_graph": module.static_graph, "find_unused_parameters": module.find_unused_parameters}
    limits, _ = cast("Any", module)._bucket_config.compute_bucket_size_limits(**how)
    buckets, _ = cast("Any", dist)._compute_bucket_assignment_by_size(parameters, limits, sparse)
    return list(reversed(buckets))


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


def _settled(module: DistributedDataParallel) -> bool:
    """Whether the module keeps the buckets that it has now."""
    rebuilds = module.static_graph or not module.find_unused_parameters
    return bool(module._has_rebuilt_buckets) or not rebuilds


def _has_reduced(module: DistributedDataParallel) -> bool:
    """Whether a backward pass has come to any gradient of its reducer, which knows then in which order they come."""
    return any(cast("Any", module.reducer).get_backward_stats())


def settle(module: DistributedDataParallel) -> None:
    """Let DDP move to the layout that it would take on before its second step; nothing if it has.

    Call only after a whole backward pass and with the group in its local state: the indices that rank 0 would
    broadcast are the same on every rank that executes the same step.
    """
    reducer: Any = module.reducer
    if not _settled(module):
        module._has_rebuilt_buckets = reducer._rebuild_buckets()


def reset(module: DistributedDataParallel, buckets: list[list[int]]) -> None:
    """Give the module a reducer in its initial state with the given buckets. Takes 4-9 ms for 10 M parameters."""
    old: Any = module.reducer
    old._remove_autograd_hooks()
    parameters, sparse = _parameters(module)
    distributed: Any = dist
    original = distributed._compute_bucket_assignment_by_size

    def assignment(tensors: Any, limits: Sequence[int], *rest: Any) -> tuple[list[list[int]], list[int]]:
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
    """Which buckets the next step of each of a rank's modules uses, through steps and recoveries.

    Each module has its own time: one that is trained every other step, or from some step on, moves when it has run.
    """

    def __init__(self, modules: Callable[[], list[DistributedDataParallel]]) -> None:
        self._modules = modules
        self._now: list[Layout] = []
        self.moving: set[int] = set()
        """Modules that DDP moves to other buckets before their next step, and only there: it takes a collective."""

    def begin(self) -> None:
        """The first step is about to be executed."""
        self._now = [layout(module) for module in self._modules()]

    def committed(self) -> None:
        """A step has ended, and with it what its modules execute of a step."""
        if all(buckets.settled for buckets in self._now):
            return
        for i, module in enumerate(self._modules()):
            if not self._now[i].settled and _settled(module):
                self._now[i] = layout(module)
                self.moving.discard(i)
            elif not self._now[i].settled and _has_reduced(module):
                self.moving.add(i)

    def now(self) -> list[Layout]:
        """Those of the next step, but for what is `moving`."""
        return list(self._now)

    def of_next_step(self) -> list[Layout]:
        """Those of the next step in the undisturbed run. Call with the groups in their local state."""
        modules = self._modules()
        for i in self.moving:
            settle(modules[i])
            self._now[i] = layout(modules[i])
        self.moving.clear()
        return self.now()

    def put_back(self, layouts: Sequence[Layout]) -> None:
        """The next step uses `layouts`. Modules that have settled come to theirs again: they execute the same steps."""
        for module, its in zip(self._modules(), layouts, strict=True):
            reset(module, its.buckets)
        self._now = list(layouts)
        self.moving.clear()
