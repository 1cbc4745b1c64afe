"""What a view hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A template and its values."""

    template: str
    context: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
