"""What modules hold besides parameters: buffers, and extra state of their own. All of it is a rank's own.

A buffer may grow, appear or go while the loop runs (a cache for longer sequences, an observer's range), either as
another tensor or as the same one in another form; torch goes on with the tensor that it knew from before, so which of
both it was is part of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from phoenix_core.errors import SnapshotUnavailable
from phoenix_core.packing import contents_by_name, flat_bytes

ALWAYS_SENT_BYTES: Final = 64 * 1024
"""Buffers up to this size go into the small state unseen; larger ones only once they differ from the start."""

Key = tuple[str, ...]
"""The name that a script gave to an object, and a path in it."""


@dataclass(frozen=True)
class Reformed:
    """A buffer of another form than before the loop, or another tensor. `same`: it is still that tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    content: bytes
    same: bool


GONE: Final = "gone"
Stored = bytes | Reformed | str
"""What a buffer holds; GONE for one that was there before the loop and is not any more."""


@dataclass(frozen=True)
class _Start:
    """A buffer before the loop: the tensor itself, and what it was."""

    tensor: torch.Tensor
    was: torch.Tensor


@dataclass
class Buffers:
    """Those of the modules that a script has handed over, by name."""

    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    _start: dict[Key, _Start] = field(default_factory=dict)
    _registered: set[Key] = field(default_factory=set)
    _extra: dict[Key, torch.nn.Module] = field(default_factory=dict)

    def add(self, name: str, module: torch.nn.Module) -> None:
        self.modules[name] = module
        self._start |= {(name, path): _Start(b, b.detach().clone()) for path, b in module.named_buffers()}
        at = [(path, leaf) for path, owner in module.named_modules() for leaf in owner._buffers]
        self._registered |= {(name, f"{path}.{leaf}" if path else leaf) for path, leaf in at}
        plain = torch.nn.Module.get_extra_state
        self._extra |= {(name, path): m for path, m in module.named_modules() if type(m).get_extra_state is not plain}

    def named(self) -> Iterator[tuple[Key, torch.Tensor]]:
        for name, module in self.modules.items():
            for path, buffer in module.named_buffers():
                yield (name, path), buffer

    # ---------------------------------------------------------------- the state

    def capture(self) -> dict[Key, Stored]:
        now = dict(self.named())
        # As bytes: pickling a tensor costs 50 us each, and a ResNet has 150 buffers.
        found: dict[Key, Stored] = dict(contents_by_name({key: b for key, b in now.items() if self._is_sent(key, b)}))
        for key, content in found.items():
            buffer, start = now[key], self._start.get(key)
            same = start is not None and start.tensor is buffer
            if isinstance(content, bytes) and (not same or self._is_reformed(key, buffer)):
                found[key] = Reformed(buffer.dtype, tuple(buffer.shape), content, same)
        return {**found, **dict.fromkeys(self._start.keys() - now.keys(), GONE)}

    def _is_reformed(self, key: Key, buffer: torch.Tensor) -> bool:
        """Whether it has another form than before the loop, or was not there."""
        start = self._start.get(key)
        return start is None or _form(buffer) != _form(start.was)

    def _is_sent(self, key: Key, buffer: torch.Tensor) -> bool:
        if buffer.nbytes <= ALWAYS_SENT_BYTES or self._is_reformed(key, buffer):
            return True
        return not torch.equal(buffer, self._start[key].was)

    def load(self, stored: Mapping[Key, Stored]) -> None:
        """Put back what `capture` found. What it has left out is as it was before the loop, or was not there."""
        now = dict(self.named())
        for key in now.keys() | self._start.keys() | stored.keys():
            content = stored.get(key, GONE)
            if key in self._start and key not in stored:
                self._as_at_start(key, now.get(key)).copy_(self._start[key].was)
            elif isinstance(content, str):
                self._remove(key)
            elif isinstance(content, Reformed):
                form = content.dtype, content.shape
                _write(self._in_form(key, now.get(key), form, same=content.same), content.content)
            else:
                _write(self._in_form(key, now.get(key), _form(self._start[key].was), same=True), content)

    def check(self, stored: Mapping[Key, Stored], extra: Mapping[Key, Any]) -> None:
        """Raises SnapshotUnavailable for what was captured of other modules than these."""
        for key, content in stored.items():
            was = self._start[key].was if key in self._start else None
            if isinstance(content, bytes) and (was is None or was.nbytes != len(content)):
                found = "nothing" if was is None else f"{was.nbytes} bytes"
                raise SnapshotUnavailable(f"the buffer {'.'.join(key)} has {len(content)} bytes, this rank has {found}")
        if others := extra.keys() ^ self._extra.keys():
            raise SnapshotUnavailable(f"only one of both has extra state in {'.'.join(min(others))}")

    # ---------------------------------------------------------------- extra state

    def extra(self) -> dict[Key, Any]:
        return {key: module.get_extra_state() for key, module in self._extra.items()}

    def load_extra(self, states: Mapping[Key, Any]) -> None:
        for key, state in states.items():
            self._extra[key].set_extra_state(state)

    # ---------------------------------------------------------------- single ones

    def _as_at_start(self, key: Key, now: torch.Tensor | None) -> torch.Tensor:
        form = _form(self._start[key].was)
        return now if now is not None and _form(now) == form else self._in_form(key, now, form, same=True)

    def _in_form(
        self, key: Key, now: torch.Tensor | None, form: tuple[torch.dtype, tuple[int, ...]], *, same: bool
    ) -> torch.Tensor:
        """The buffer with that form: what is there if it will do, the tensor from before the loop, or a new one."""
        start = self._start.get(key)
        if now is not None and _form(now) == form and (not same or start is None or now is start.tensor):
            return now
        dtype, shape = form
        if same and start is not None:
            tensor = start.tensor
            if _form(tensor) != form:
                tensor.data = torch.empty(shape, dtype=dtype, device=tensor.device)
        else:
            tensor = torch.empty(shape, dtype=dtype, device=self._device(key, now))
        self._set(key, tensor)
        return tensor

    def _device(self, key: Key, now: torch.Tensor | None) -> torch.device:
        """Where a new tensor goes: to the one before, or to the module's other tensors."""
        if now is not None:
            return now.device
        if key in self._start:
            return self._start[key].tensor.device
        module = self.modules[key[0]]
        return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    def _set(self, key: Key, tensor: torch.Tensor) -> None:
        owner, leaf = self._place(key)
        if leaf in owner._buffers:
            owner._buffers[leaf] = tensor
        else:
            owner.register_buffer(leaf, tensor)

    def _remove(self, key: Key) -> None:
        """None in its place, or nothing where nothing was registered before the loop."""
        owner, leaf = self._place(key)
        if key in self._registered:
            owner._buffers[leaf] = None
        elif leaf in owner._buffers:
            delattr(owner, leaf)

    def _place(self, key: Key) -> tuple[torch.nn.Module, str]:
        name, path = key
        owner, _, leaf = path.rpartition(".")
        return self.modules[name].get_submodule(owner), leaf


def _form(buffer: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    return buffer.dtype, tuple(buffer.shape)


def _write(buffer: torch.Tensor, content: bytes) -> None:
    """Not through its memory: torch lets nobody resize a tensor any more whose memory somebody else has seen."""
    if content:
        flat_bytes(buffer).copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
