"""Runs a suite, trial after trial, into one directory:

suite.json                  what was asked for, resolved
001-kill-one/, ...          one trial directory each
summary.json                what came of it, written again after each trial: a kill in the middle loses nothing
summary.md, junit.xml       the same for people and for continuous integration, at the end
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from chaos.conductor import Stop
from chaos.errors import ChaosError, InvalidScenario, TrialError, Unsupported
from chaos.faults import PlannedFault
from chaos.provenance import provenance
from chaos.record import Result, TrialDirectory, utc_now, write_atomically, write_text, writing
from chaos.runtimes import RUNTIMES, Runtime, runtime_for
from chaos.schedule import drawn
from chaos.suite import PlannedTrial, Suite
from chaos.summary import Entry, State, Summary, junit, markdown
from chaos.trial import TrialObserver, run_trial
from chaos.undisturbed import UndisturbedRuns, source_of
from chaos.verdict import Verdict


class Nightly:
    """One run of a suite. Call `run` for each of the suite's trials in order, then `finish`.

    Making it asks of every scenario whether it can be run here, and raises InvalidScenario before anything is started;
    what only this machine cannot do is skipped. Raises TrialError where the directory cannot be used.
    """

    def __init__(
        self,
        suite: Suite,
        directory: Path,
        *,
        runtimes: Mapping[str, Runtime] = RUNTIMES,
        strict: bool = False,
    ) -> None:
        self.suite = suite
        self.directory = directory.absolute()
        self._runtimes = runtimes
        self._refused = refusals(suite, runtimes)
        self._undisturbed = UndisturbedRuns()
        self._began = time.monotonic()
        self.summary = Summary(
            suite=suite.name,
            description=suite.description,
            entries=(),
            provenance=provenance(),
            started_at=utc_now(),
            finished_at=None,
            elapsed_s=0.0,
            strict=strict,
        )
        self._make_directory()

    def run(self, trial: PlannedTrial, *, observer: TrialObserver | None = None, stop: Stop | None = None) -> Entry:
        """One trial, to its end, whatever that is; the summary on disk tells of it then."""
        began = time.monotonic()
        entry = self._result_of(trial, observer, stop)
        entry = replace(entry, seconds=time.monotonic() - began)
        self._note(replace(self.summary, entries=(*self.summary.entries, entry)))
        return entry

    def finish(self) -> Summary:
        """Write what came of it. Raises TrialError where it cannot be written."""
        self._note(replace(self.summary, finished_at=utc_now()))
        write_text(self.directory / "summary.md", markdown(self.summary))
        write_text(self.directory / "junit.xml", junit(self.summary))
        return self.summary

    def _result_of(self, trial: PlannedTrial, observer: TrialObserver | None, stop: Stop | None) -> Entry:
        scenario = trial.scenario
        entry = Entry(name=trial.name, scenario=scenario.name, seed=scenario.seed, state=State.UNKNOWN)
        if refused := self._refused[_place(trial)]:
            return replace(entry, state=State.SKIPPED, reason=refused)
        if stop is not None and stop.reason is not None:
            return replace(entry, reason=f"not begun: {stop.reason}")
        budget = self.suite.budget_s
        if budget is not None and time.monotonic() - self._began >= budget:
            return replace(entry, reason=f"not begun: the suite's budget of {budget:g} s was over")
        name = f"{len(self.summary.entries) + 1:03d}-{trial.name}"
        entry = replace(entry, directory=str(self.directory / name))
        try:
            directory = TrialDirectory.create(self.directory / name, scenario)
            result = run_trial(
                directory, runtimes=self._runtimes, observer=observer, stop=stop, undisturbed=self._undisturbed
            )
        except ChaosError as error:
            return replace(entry, reason=str(error))
        return _as_known(_with_result(entry, result, source_of(directory.twin)), trial.known_failure)

    def _make_directory(self) -> None:
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        if any(self.directory.iterdir()):
            raise TrialError(f"{self.directory} is not empty: choose another directory")
        trials = [{"name": trial.name, "scenario": trial.scenario.to_json()} for trial in self.suite.trials]
        told = {"name": self.suite.name, "description": self.suite.description, "budget_s": self.suite.budget_s}
        write_atomically(self.directory / "suite.json", {**told, "trials": trials})
        self._note(self.summary)

    def _note(self, summary: Summary) -> None:
        self.summary = replace(summary, elapsed_s=time.monotonic() - self._began)
        write_atomically(self.directory / "summary.json", self.summary.to_json())


def plan(suite: Suite, refused: Mapping[str, str]) -> str:
    """What would run: every trial, and every fault of it with the choices that its seed makes."""
    lines = []
    for trial in suite.trials:
        lines.append(f"{trial.name}  ({trial.scenario.workload}, {trial.scenario.steps} steps)")
        lines += [f"  skipped here: {reason}"] if (reason := refused[_place(trial)]) else []
        for fault in _drawn_of(trial):
            who, when = (json.dumps(part.to_json()) for part in (fault.target, fault.trigger))
            lines.append(f"  {fault.id}  {fault.kind}  {who}  {when}{f'  {fault.reason}' if fault.reason else ''}")
    return "\n".join(lines)


def plan_document(suite: Suite, refused: Mapping[str, str]) -> dict[str, object]:
    """The same for programs; `skipped` says why a trial would not run, and is empty where it would."""
    trials = [
        {
            "name": trial.name,
            "scenario": trial.scenario.name,
            "seed": trial.scenario.seed,
            "workload": trial.scenario.workload,
            "steps": trial.scenario.steps,
            "skipped": refused[_place(trial)],
            "faults": [fault.to_json() for fault in _drawn_of(trial)],
        }
        for trial in suite.trials
    ]
    return {"suite": suite.name, "budget_s": suite.budget_s, "trials": trials}


def _drawn_of(trial: PlannedTrial) -> list[PlannedFault]:
    scenario = trial.scenario
    return [drawn(one, seed=scenario.seed, world_size=scenario.cluster.world_size) for one in scenario.planned]


def refusals(suite: Suite, runtimes: Mapping[str, Runtime] = RUNTIMES) -> dict[str, str]:
    """Why this machine cannot do a scenario; empty where it can. Raises InvalidScenario for one that none can."""
    refused: dict[str, str] = {}
    for trial in suite.trials:
        if (place := _place(trial)) in refused:
            continue  # finding out can take seconds, and no seed changes it
        try:
            runtime_for(trial.scenario, runtimes)
            refused[place] = ""
        except Unsupported as error:
            refused[place] = error.reason
        except InvalidScenario as error:
            raise InvalidScenario(error.reason, source=f"scenario {trial.scenario.name}", field=error.field) from error
    return refused


def _place(trial: PlannedTrial) -> str:
    return json.dumps({**trial.scenario.to_json(), "seed": None}, sort_keys=True)


def _as_known(entry: Entry, known: str) -> Entry:
    """Of a trial whose failure is known, a failure is KNOWN and a pass is news, and so fails until the note is gone."""
    if not known:
        return entry
    if entry.state is State.FAIL:
        return replace(entry, state=State.KNOWN, reason=f"known: {known}\n{entry.reason}")
    if entry.state is State.PASS:
        return replace(entry, state=State.FAIL, reason=f"it passed, but the suite says that it fails: {known}")
    return entry


def _with_result(entry: Entry, result: Result, twin_of: str | None) -> Entry:
    bad = [f"{name}: {check.detail}" for name, check in result.checks.items() if check.verdict is not Verdict.PASS]
    reason = "" if result.verdict is Verdict.PASS else "\n".join([*([result.error] if result.error else []), *bad])
    return replace(
        entry,
        state=State(result.verdict.value),
        reason=reason,
        checks=result.checks,
        faults=sum(recovery.fault is not None for recovery in result.recoveries),
        recovery_s=tuple(one.recovery_s for one in result.recoveries if one.recovery_s is not None),
        goodput=result.goodput,
        twin_of=twin_of,
    )
