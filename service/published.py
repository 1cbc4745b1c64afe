"""The comparison with other runtimes as `make bench-peers` has published it: read as the files that it is.

Nothing imports benchmarks; where the service was installed without a checkout there are no results.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Final

import chaos
from service.problems import Problem
from service.shapes import Json, Shape

RESULTS: Final = Path(chaos.__file__).parents[1] / "benchmarks" / "results"
_HINT: Final = "make bench-peers in a checkout measures them (40 minutes), and the service of that checkout shows them"


class SectionShape(Shape):
    """A table and what its numbers mean. A cell is a value, or the reason for which there is none."""

    title: str
    text: str
    header: list[str]
    rows: list[list[str]]


class PeersShape(Shape):
    """PHOENIX and other runtimes, measured in one run on one machine by the command that is told."""

    at: datetime
    commit: str | None
    dirty: bool | None
    machine: Json
    versions: Json
    command: str
    sections: list[SectionShape]


def peers(directory: Path | None = None) -> PeersShape:
    """Raises Problem 404 where there is no such result, or one of another version."""
    file = (directory or RESULTS) / "peers.json"
    found = _read(file)
    try:
        document = json.loads(found)
        return PeersShape.model_validate({name: document[name] for name in PeersShape.model_fields})
    except (ValueError, KeyError, TypeError):
        raise Problem(404, "not-found", f"{file} is of another version: {_HINT}.") from None


def peers_plot(directory: Path | None = None) -> bytes:
    """SVG. Raises Problem 404."""
    return _read((directory or RESULTS) / "peers.svg")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        raise Problem(404, "not-found", f"Other runtimes were not measured here: {_HINT}.") from None
