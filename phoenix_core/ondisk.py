"""What the ranks have said that they wrote to disk: pure, for the membership. The files are checkpoint.py's."""

from __future__ import annotations


class OnDisk:
    """`boundary` is that of the latest checkpoint of which every rank has written its part; 0 for none."""

    def __init__(self, boundary: int) -> None:
        self.boundary = boundary
        self._parts: dict[int, set[int]] = {}

    def written(self, rank: int | None, boundary: int, size: int) -> None:
        """Ranks write at their own pace: a checkpoint is there once the last of `size` has. None: it is no rank now."""
        if rank is None:
            return
        parts = self._parts.setdefault(boundary, set())
        parts.add(rank)
        if len(parts) == size:
            self.boundary = max(self.boundary, boundary)
            self._parts = {later: done for later, done in self._parts.items() if later > self.boundary}
