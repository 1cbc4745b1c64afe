"""`phoenix trial`: one trial here and now, without a service."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.errors import ChaosError, InvalidScenario
from chaos.reading import Event
from chaos.record import Part, Result, TrialDirectory
from chaos.runtimes import Runtime, runtime_for, with_extra
from chaos.scenario import Scenario, load_scenario
from chaos.trial import EXIT_CODES, EXIT_USAGE, INTERRUPTED, exit_code, interruptible, interruption, summary
from chaos.trial import run_trial as run_in_directory
from chaos.verdict import Verdict
from service.report import document, recovery_table
from service.settings import data_directory


def run_trial(path: Path, directory: Path | None, *, as_json: bool) -> int:
    """The exit code: 0 pass, 1 fail, 2 a scenario or directory that cannot be used, 3 unknown, 130 interrupted."""
    try:
        scenario = load_scenario(path)
        runtimes = with_extra(os.environ.get("PHOENIX_RUNTIMES", ""))
        _check(scenario, runtimes, path)  # what cannot be run leaves no directory behind
        trial = TrialDirectory.create(directory or _new_directory(scenario), scenario)
    except ChaosError as error:
        print(f"phoenix: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        with interruptible() as stop, Watch(scenario, visible=not as_json and sys.stdout.isatty()) as watch:
            result = run_in_directory(trial, runtimes=runtimes, observer=watch.observe, stop=stop)
    except ChaosError as error:  # it ran, and nobody can know what came of it: a disk that became full
        print(f"phoenix: {error}", file=sys.stderr)
        return EXIT_CODES[Verdict.UNKNOWN]
    _report(result, trial, as_json=as_json)
    if result.error == INTERRUPTED:
        print(f"phoenix: {interruption(trial.path)}", file=sys.stderr)
    return exit_code(result)


def _check(scenario: Scenario, runtimes: Mapping[str, Runtime], path: Path) -> None:
    """Raises InvalidScenario, with the file, where it cannot be run here."""
    try:
        runtime_for(scenario, runtimes)
    except InvalidScenario as error:
        raise InvalidScenario(error.reason, source=str(path), field=error.field) from error


class Watch:
    """Progress on a terminal: steps that every rank has committed, part by part; `title` comes before the part."""

    def __init__(self, scenario: Scenario, *, visible: bool, title: str = "") -> None:
        self._title = title
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, disable=not visible, transient=True)
        self._task = self._progress.add_task(f"{title}starting", total=scenario.steps)
        self._world_size = scenario.cluster.world_size
        self._ranks: dict[int, set[int]] = {}
        self._part = Part.RUN

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def observe(self, part: Part, events: Sequence[Event]) -> None:
        if part != self._part:
            self._part = part
            self._ranks.clear()
            self._progress.reset(self._task)  # else the clock stands still from the end of the part before
        for event in events:
            if event.kind == "step_committed" and event.step is not None and event.rank is not None:
                self._ranks.setdefault(event.step, set()).add(event.rank)
        done = sum(len(ranks) == self._world_size for ranks in self._ranks.values())
        self._progress.update(self._task, description=f"{self._title}{part.value}", completed=done)


def _new_directory(scenario: Scenario) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return data_directory(None) / "trials" / f"{scenario.name}-{stamp}-{os.getpid()}"


def _report(result: Result, trial: TrialDirectory, *, as_json: bool) -> None:
    recoveries = [recovery.to_json() for recovery in result.recoveries]
    if as_json:
        checks = {name: check.to_json() for name, check in result.checks.items()}
        reasons = {"error": result.error, "checks": checks, "directory": str(trial.path)}
        print(json.dumps({**document(result.verdict, None, recoveries), **reasons}))
        return
    if recoveries:
        Console().print(recovery_table(recoveries))
    print(summary(result))
    print(f"trial directory: {trial.path}")
