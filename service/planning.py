"""What a request or a schedule names, as the trials of a run: registered scenarios and workloads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chaos.runtimes import runtime_for, with_extra
from chaos.scenario import Scenario
from service import catalog
from service.problems import Problem
from service.settings import Settings
from service.shapes import NewRun

MOST_SEED = 2**63 - 1


def plan(settings: Settings, body: NewRun) -> Sequence[Scenario]:
    """One scenario for each trial. Raises Problem and ChaosError for what cannot be run here."""
    scenario = _scenario(settings, body)
    if body.seed is not None:
        scenario = replace(scenario, seed=body.seed)
    if scenario.seed + body.trials - 1 > MOST_SEED:
        raise Problem(422, "invalid-request", f"seed: {scenario.seed} leaves no seeds for {body.trials} trials")
    return [replace(scenario, seed=scenario.seed + number) for number in range(body.trials)]


def _scenario(settings: Settings, body: NewRun) -> Scenario:
    if (body.scenario is None) == (body.scenario_name is None):
        raise Problem(422, "invalid-request", "give either scenario_name or scenario")
    if body.scenario_name is not None:
        scenario = catalog.scenario_named(body.scenario_name)
    else:
        scenario = Scenario.from_json(body.scenario)
    catalog.refuse_paths(scenario, settings.allowed_files)
    runtime_for(scenario, with_extra(settings.extra_runtimes))
    return scenario
