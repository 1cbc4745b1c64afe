"""Undisturbed runs that serve more than one trial of a suite: the same job of the same seed gives the same run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from chaos.errors import TrialError
from chaos.record import PartDirectory
from chaos.scenario import Scenario

SOURCE_FILE: Final = "source.json"


class UndisturbedRuns:
    """Those that completed in this process, which runs one code on one machine."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Path]] = {}

    def keep(self, scenario: Scenario, trial: str, directory: PartDirectory) -> None:
        """This one completed; its directory must stay."""
        self._kept.setdefault(_job(scenario), (trial, directory.path))

    def lend(self, scenario: Scenario, directory: PartDirectory) -> str | None:
        """Copy one that fits into `directory`; the trial that it is from, or None where there is none.

        The copy makes a trial directory whole: it can be judged again without the others. Raises TrialError.
        """
        if (found := self._kept.get(_job(scenario))) is None:
            return None
        trial, path = found
        try:
            shutil.copytree(path, directory.path)
            (directory.path / SOURCE_FILE).write_text(json.dumps({"trial": trial}) + "\n")
        except OSError as error:
            raise TrialError(f"cannot copy the undisturbed run of {trial}: {error.strerror or error}") from error
        return trial


def source_of(directory: PartDirectory) -> str | None:
    """The trial that an undisturbed run was taken from; None for one of its own."""
    try:
        return str(json.loads((directory.path / SOURCE_FILE).read_bytes())["trial"])
    except FileNotFoundError:
        return None


def _job(scenario: Scenario) -> str:
    """All that an undisturbed run depends on; spares take no part in it."""
    cluster = {name: value for name, value in scenario.cluster.to_json().items() if name != "spares"}
    job = [scenario.runtime, scenario.workload, dict(scenario.options), scenario.steps, scenario.seed, cluster]
    return json.dumps(job, sort_keys=True)
