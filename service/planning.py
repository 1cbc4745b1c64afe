"""What a request or a schedule names, as the trials of a run: registered scenarios, suites and workloads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from chaos.errors import ChaosError, Unsupported
from chaos.runtimes import runtime_for, with_extra
from chaos.scenario import Scenario
from service import catalog
from service.problems import Problem
from service.settings import Settings
from service.shapes import NewRun
from service.store import MOST_TRIALS

MOST_SEED = 2**63 - 1
# Each is a row, and all are written in one transaction, for which everybody else waits.
MOST_PLANNED = 10_000


def plan(settings: Settings, body: NewRun) -> Sequence[Scenario]:
    """One scenario for each trial. Raises Problem and ChaosError for what cannot be run here."""
    given = [value for value in (body.scenario, body.scenario_name, body.suite) if value is not None]
    if len(given) != 1:
        raise Problem(422, "invalid-request", "give one of scenario_name, scenario and suite")
    if body.revision is not None and settings.repository is None:
        detail = "revision: this service knows no repository; start it with --repository DIRECTORY"
        raise Problem(422, "no-repository", detail)
    if body.suite is not None:
        return _of_suite(settings, body, body.suite)
    if body.scenario_name is not None:
        scenario = catalog.scenario_named(body.scenario_name)
    else:
        scenario = Scenario.from_json(body.scenario)
    _refuse(settings, scenario)
    if body.seed is not None:
        scenario = replace(scenario, seed=body.seed)
    if scenario.seed + body.trials - 1 > MOST_SEED:
        raise Problem(422, "invalid-request", f"seed: {scenario.seed} leaves no seeds for {body.trials} trials")
    if len(scenario.planned) * body.trials > MOST_PLANNED:
        detail = f"{body.trials} trials of {len(scenario.planned)} faults each; a run plans at most {MOST_PLANNED}"
        raise Problem(422, "refused", f"trials: {detail}")
    return [replace(scenario, seed=scenario.seed + number) for number in range(body.trials)]


def again(settings: Settings, documents: Sequence[Mapping[str, object]]) -> Sequence[Scenario]:
    """The trials of an earlier run, seeds and all. Raises Problem and ChaosError for what cannot be run here (now)."""
    found = [Scenario.from_json(dict(document)) for document in documents]
    for scenario in found:
        _refuse(settings, scenario)
    return found


def _of_suite(settings: Settings, body: NewRun, name: str) -> Sequence[Scenario]:
    """What this machine cannot do is left out, as `phoenix nightly` does."""
    if body.seed is not None or body.trials != 1:
        raise Problem(422, "invalid-request", "a suite says itself which seeds it runs, and how often")
    suite = catalog.suite_named(name)
    found: list[Scenario] = []
    refusal: ChaosError | None = None
    for trial in suite.trials:
        try:
            _refuse(settings, trial.scenario)
            found.append(trial.scenario)
        except Unsupported as error:
            refusal = error
    if not found:
        raise refusal or Problem(422, "refused", f"suite {name} has no trials")
    if len(found) > MOST_TRIALS:
        raise Problem(422, "refused", f"suite {name} stands for {len(found)} trials; a run has at most {MOST_TRIALS}")
    return found


def _refuse(settings: Settings, scenario: Scenario) -> None:
    catalog.refuse_paths(scenario, settings.allowed_files)
    runtime_for(scenario, with_extra(settings.extra_runtimes))
