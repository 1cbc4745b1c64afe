"""Finds finished trials below directories, and reads what they count for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.compare.samples import TrialSample, sample_of
from chaos.errors import InvalidScenario, TrialError
from chaos.record import Parse, Spec, TrialDirectory
from chaos.scenario import Scenario

# Results lie as DIR/TRIAL, those of a nightly or of a comparison as DIR/NAME/TRIAL.
_DEEPEST = 4


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Oldest first; `skipped` says of each directory that could not be read why not."""

    samples: tuple[TrialSample, ...]
    skipped: tuple[str, ...]


class Finder:
    """Finds finished trials. What was called done is not told again, and costs nothing at the next look."""

    def __init__(self) -> None:
        self._done: set[str] = set()
        self._open: dict[str, tuple[int, list[str]]] = {}

    def below(self, *roots: Path) -> Iterator[TrialDirectory]:
        """Those at or below these directories that are not done. Nothing there is no error."""
        for root in roots:
            yield from self._find(str(root.absolute()), _DEEPEST)

    def done(self, directory: TrialDirectory) -> None:
        self._done.add(str(directory.path))

    def _find(self, path: str, depth: int) -> Iterator[TrialDirectory]:
        directory = TrialDirectory(Path(path))
        if directory.spec_file.exists():
            if path not in self._done and directory.result_file.exists():  # else it runs, or was killed
                yield directory
        elif depth:
            for child in self._children(path):
                yield from self._find(child, depth - 1)

    def _children(self, path: str) -> list[str]:
        """Directories inside that are not done; a directory's own time changes when one comes or goes."""
        try:
            changed = os.stat(path).st_mtime_ns
            known = self._open.get(path)
            if known is None or known[0] != changed:
                with os.scandir(path) as entries:
                    known = changed, sorted(entry.path for entry in entries if _may_hold_results(entry))
        except OSError:
            return []
        inside = [child for child in known[1] if child not in self._done]
        self._open[path] = known[0], inside
        return inside


def _may_hold_results(entry: os.DirEntry[str]) -> bool:
    """In a hidden directory something is being made, or is none of ours."""
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


class Reader:
    """Reads specifications and results. Scenarios that differ by their seed only are checked once."""

    def __init__(self) -> None:
        self._scenarios: dict[str, Scenario] = {}

    def read(self, directory: TrialDirectory) -> tuple[Spec, TrialSample] | str:
        """Of a finished trial, or why there is none."""
        return _read(directory, self._parse)

    def _parse(self, document: object) -> Scenario:
        """Raises InvalidScenario."""
        if not isinstance(document, dict):
            return Scenario.from_json(document)
        seed = document.get("seed", 0)
        key = json.dumps({**document, "seed": 0}, sort_keys=True)
        if key not in self._scenarios:
            self._scenarios[key] = Scenario.from_json(document)
        if not isinstance(seed, int):
            raise InvalidScenario("must be a whole number", field="seed")
        return replace(self._scenarios[key], seed=seed)


def collect(*roots: Path) -> Collected:
    """All finished trials at or below these directories."""
    reader = Reader()
    found = [reader.read(directory) for directory in Finder().below(*roots)]
    samples = [one[1] for one in found if not isinstance(one, str)]
    return Collected(
        samples=tuple(sorted(samples, key=lambda sample: (sample.at, sample.trial))),
        skipped=tuple(one for one in found if isinstance(one, str)),
    )


def read_sample(directory: TrialDirectory) -> TrialSample | str:
    """The sample of a finished trial, or why there is none."""
    found = _read(directory, Scenario.from_json)
    return found if isinstance(found, str) else found[1]


def _read(directory: TrialDirectory, parse: Parse) -> tuple[Spec, TrialSample] | str:
    try:
        result = directory.read_result()
        if result is None:
            return f"{directory.path}: the trial is not over"
        spec = directory.read_spec(parse)
        return spec, sample_of(spec, result)
    except (TrialError, ValueError) as error:
        return str(error)
