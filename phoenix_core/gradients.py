"""Gradients that a script keeps from one step to the next: of an optimizer that runs every other step, or of parameters
that nothing trains. They are state as parameters are; most scripts clear theirs before they add to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from phoenix_core import fsdp
from phoenix_core.errors import UsageError

Form = tuple[int, int] | bool
"""What a parameter has for a gradient: none, a dense one, or the dimensions of a sparse one (sparse, dense)."""


def form_of(parameter: torch.nn.Parameter) -> Form:
    grad = parameter.grad
    if grad is None or not grad.is_sparse:
        return grad is not None
    return grad.sparse_dim(), grad.dense_dim()


def zeros(parameter: torch.nn.Parameter, form: Form) -> torch.Tensor | None:
    """A gradient of that form, as `zero_grad` leaves it."""
    if isinstance(form, bool):
        return torch.zeros_like(parameter) if form else None
    sparse, _ = form
    none = torch.empty((sparse, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[sparse:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(none, values, parameter.shape, check_invariants=False)


def nonzero(gradients: Mapping[int, torch.Tensor]) -> set[int]:
    """Those with anything in them; asked in one go, since each answer of a device is waited for."""
    found = {i for i, gradient in gradients.items() if gradient.is_sparse and gradient._nnz()}
    dense = {
        i: part for i, gradient in gradients.items() if not gradient.is_sparse and (part := _part(gradient)).numel()
    }
    if dense:
        first = next(iter(dense.values()))
        some = torch.stack([_any(part).to(first.device) for part in dense.values()]).tolist()
        found |= {i for i, any_ in zip(dense, some, strict=True) if any_}
    return found


def _any(part: torch.Tensor) -> torch.Tensor:
    """As Tensor.any(), in a third of the time: of the least and the greatest. What is not a number counts."""
    least, greatest = torch.aminmax(torch.view_as_real(part) if part.is_complex() else part)
    return least.bool() | greatest.bool()


def _part(gradient: torch.Tensor) -> torch.Tensor:
    return fsdp.local(gradient).detach()


class Gradients:
    """Of the parameters that `listed` gives, by their numbers there."""

    def __init__(self, listed: Callable[[], Sequence[torch.nn.Parameter]]) -> None:
        self._listed = listed
        self._cleared: set[int] = set()
        self._arrived: dict[int, tuple[int, int]] | None = None
        self._copies: dict[int, torch.Tensor] | None = None
        self._given: dict[int, torch.Tensor] | None = None

    # ---------------------------------------------------------------- where the loop is

    def arrive(self) -> None:
        """The loop comes to a step, which begins with the gradients that are there."""
        self._given = self._copies = None
        self._arrived = {i: _identity(gradient) for i, gradient in self._there().items()}

    def at_backward(self) -> None:
        """The step's first backward pass is about to add to what is there. Raises UsageError for kept sparse ones."""
        there, arrived = self._there(), self._arrived or {}
        kept = nonzero(there)
        if any(there[i].is_sparse for i in kept):
            raise UsageError("sparse gradients of the step before are still there: call zero_grad() in every step")
        self._cleared -= kept
        self._cleared |= {i for i in arrived.keys() - kept if i not in there or _identity(there[i]) != arrived[i]}
        self._copies = {i: _part(there[i]).clone() for i in kept}

    def left(self) -> None:
        """A step has ended, or is to begin anew."""
        self._arrived = self._copies = None

    # ---------------------------------------------------------------- the state of a boundary

    def at_boundary(self) -> dict[int, torch.Tensor]:
        """This rank's part of each that the coming step, or the one that is being executed, began with and may need.

        What was found cleared by the last step that could have added to it counts as not needed.
        """
        for known in (self._given, self._copies):
            if known is not None:
                return known
        there = {i: gradient for i, gradient in self._there().items() if i not in self._cleared}
        if self._arrived is not None:  # what a broken step changed since is not what it began with
            there = {i: gradient for i, gradient in there.items() if self._arrived.get(i) == _identity(gradient)}
        # Copies: a snapshot is still read while the coming step adds to them.
        return {i: _part(there[i]).clone() for i in sorted(nonzero(there)) if not there[i].is_sparse}

    def forget(self) -> None:
        """A state is about to be put back: it has none but those for which `room` is asked."""
        self._given = {}

    def room(self, number: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for one that is put back."""
        assert self._given is not None
        like = fsdp.local(self._listed()[number]).detach()
        self._given[number] = torch.empty_like(like, dtype=dtype)
        return self._given[number]

    def put_back(self, forms: Sequence[Form]) -> None:
        """Give each parameter the gradient that the boundary has: one that is kept, zeros of its form, or none."""
        self._given = self.at_boundary()
        for i, (parameter, form) in enumerate(zip(self._listed(), forms, strict=True)):
            kept = self._given.get(i)
            parameter.grad = zeros(parameter, form) if kept is None else fsdp.like(parameter, kept.clone())

    def _there(self) -> dict[int, torch.Tensor]:
        found: dict[int, Any] = {i: parameter.grad for i, parameter in enumerate(self._listed())}
        return {i: gradient for i, gradient in found.items() if gradient is not None}


def _identity(gradient: torch.Tensor) -> tuple[int, int]:
    """Another one where the gradient was replaced or changed in place; nothing is held on to."""
    return id(gradient), gradient._version
