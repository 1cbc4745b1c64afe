"""Values as every database takes them. Pure.

PostgreSQL holds texts to their length, knows no NUL character in them and no NaN in JSON; SQLite takes all of it. What
processes wrote into their events must never keep the events after it out, so it is made to fit, the same for both.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_REPLACEMENT = "\ufffd"


def to_json_text(value: object) -> str:
    """JSON of a column: what is no number becomes null, a NUL the replacement character."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"))
    return _NUL.sub(r"\1\\ufffd", text) if "\\u0000" in text else text


def fit_text(value: object, most: int) -> str:
    """At most so many characters, all of which can be stored."""
    text = str(value)[:most].replace("\0", _REPLACEMENT)
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair, which JSON can carry


def fit_optional(value: object, most: int) -> str | None:
    return None if value is None else fit_text(value, most)


def fit_number(value: object, bits: int = 32) -> int | None:
    """None for what is no whole number of so many bits, sign included."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    return value if fits else None  # type: ignore[return-value]


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
