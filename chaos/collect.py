"""Reads the samples of finished trials from directories, each once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.compare.samples import TrialSample, sample_of
from chaos.errors import InvalidScenario, TrialError
from chaos.record import Parse, TrialDirectory
from chaos.scenario import Scenario

# Results lie as DIR/TRIAL, those of a nightly or of a comparison as DIR/NAME/TRIAL.
_DEEPEST = 4


@dataclass(frozen=True, kw_only=True)
class Collected:
    """`skipped` says of each directory that could not be read why not."""

    samples: tuple[TrialSample, ...]
    skipped: tuple[str, ...]


class Collector:
    """Remembers what it has read: a result is written once, so asking again costs a look at what was not over yet."""

    def __init__(self) -> None:
        self._finished: dict[Path, TrialSample] = {}
        self._listings: dict[Path, tuple[int, tuple[Path, ...]]] = {}
        self._scenarios: dict[str, Scenario] = {}
        self._gathered: dict[tuple[Path, ...], tuple[TrialSample, ...]] = {}
        self._news = False

    def below(self, *roots: Path) -> Collected:
        """All finished trials at or below these directories, oldest first. Nothing there is no error."""
        self._news = roots not in self._gathered
        skipped: list[str] = []
        found = [sample for root in roots for sample in self._samples(root, _DEEPEST, skipped)]
        if self._news:
            found.sort(key=lambda sample: (sample.at, sample.trial))
            self._gathered[roots] = tuple(found)
        return Collected(samples=self._gathered[roots], skipped=tuple(skipped))

    def _samples(self, path: Path, depth: int, skipped: list[str]) -> Iterator[TrialSample]:
        if path in self._finished:
            yield self._finished[path]
        elif (directory := TrialDirectory(path)).spec_file.exists():
            if directory.result_file.exists():  # else it runs, or was killed
                read = read_sample(directory, self._parse)
                if isinstance(read, TrialSample):
                    self._finished[path], self._news = read, True
                    yield read
                else:
                    skipped.append(read)
        elif depth:
            for child in self._children(path):
                yield from self._samples(child, depth - 1, skipped)

    def _children(self, path: Path) -> tuple[Path, ...]:
        """Directories inside; a directory's own time changes when one comes or goes."""
        try:
            changed = path.stat().st_mtime_ns
            known = self._listings.get(path)
            if known is None or known[0] != changed:
                with os.scandir(path) as entries:
                    inside = tuple(sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)))
                known, self._news = (changed, inside), True
                self._listings[path] = known
        except OSError:
            return ()
        return known[1]

    def _parse(self, document: object) -> Scenario:
        """Scenarios that differ by their seed only are checked once. Raises InvalidScenario."""
        if not isinstance(document, dict):
            return Scenario.from_json(document)
        seed = document.get("seed", 0)
        key = json.dumps({**document, "seed": 0}, sort_keys=True)
        if key not in self._scenarios:
            self._scenarios[key] = Scenario.from_json(document)
        if not isinstance(seed, int):
            raise InvalidScenario("must be a whole number", field="seed")
        return replace(self._scenarios[key], seed=seed)


def read_sample(directory: TrialDirectory, parse: Parse = Scenario.from_json) -> TrialSample | str:
    """The sample of a finished trial, or why there is none."""
    try:
        result = directory.read_result()
        return sample_of(directory.read_spec(parse), result) if result else f"{directory.path}: the trial is not over"
    except (TrialError, ValueError) as error:
        return str(error)
