"""Real text as bytes: a file, or the source of the Python standard library of this machine."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

# Tests are half of the library and mostly tables; the others are not part of the language's own source.
LEFT_OUT: Final = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

Bytes = npt.NDArray[np.uint8]


class CorpusError(ValueError):
    """The text cannot be used; the message says which file and why."""


def load_corpus(path: Path | None, at_least: int) -> Bytes:
    """The text as one array of bytes. Raises CorpusError where it is missing or shorter than `at_least` bytes."""
    text = standard_library() if path is None else _read(path)
    if len(text) < at_least:
        raise CorpusError(f"{path} holds {len(text)} bytes; one sample takes {at_least}: give a longer file")
    return np.frombuffer(text, dtype=np.uint8)


def standard_library() -> bytes:
    """All of its modules, concatenated in the order of their paths: the same bytes for every rank of a machine."""
    root = Path(sysconfig.get_path("stdlib"))
    modules = (path for path in root.rglob("*.py") if not LEFT_OUT & set(path.relative_to(root).parts[:-1]))
    return b"\n".join(path.read_bytes() for path in sorted(modules))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(f"cannot read the data file {path}: {error.strerror}") from error
