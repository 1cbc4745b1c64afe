"""What the ranks have said that they wrote to disk: pure, for the membership. The files are checkpoint.py's."""

from __future__ import annotations

from typing import Final

REMEMBERED: Final = 8
"""Whole checkpoints that can be gone back to, one after another; jobs keep fewer on disk."""


class OnDisk:
    """Checkpoints of which every rank has written its part, and which nobody has found damaged."""

    def __init__(self, boundary: int) -> None:
        self._whole = [boundary] if boundary else []
        self._parts: dict[int, set[int]] = {}

    @property
    def boundary(self) -> int:
        """Of the latest; 0 for none."""
        return self._whole[-1] if self._whole else 0

    def written(self, rank: int | None, boundary: int, size: int) -> None:
        """Ranks write at their own pace: a checkpoint is there once the last of `size` has. None: it is no rank now."""
        if rank is None:
            return
        parts = self._parts.setdefault(boundary, set())
        parts.add(rank)
        if len(parts) == size:
            if boundary > self.boundary:
                self._whole = [*self._whole[1 - REMEMBERED :], boundary]
            self._parts = {later: done for later, done in self._parts.items() if later > self.boundary}

    def refuse(self, boundary: int) -> None:
        """It cannot be read: the one before it is the latest now."""
        self._whole = [earlier for earlier in self._whole if earlier < boundary]
