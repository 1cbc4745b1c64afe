"""What a run can be made of: the scenarios and workloads that REST requests may name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import chaos
from chaos.errors import InvalidScenario
from chaos.scenario import Scenario, load_scenario
from service.problems import Problem, not_found

_PACKAGE = Path(chaos.__file__).parent


def directories() -> list[Path]:
    """Where scenario files lie: inside the installed package, or beside it in a checkout."""
    return [path for path in (_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios") if path.is_dir()]


def scenarios() -> Mapping[str, Scenario]:
    """All scenarios by name; a file that cannot be used is left out, `scenario_named` says why."""
    found: dict[str, Scenario] = {}
    for path in _files().values():
        try:
            found[path.stem] = load_scenario(path)
        except InvalidScenario:
            continue
    return found


def scenario_named(name: str) -> Scenario:
    """Raises Problem 404, and InvalidScenario for a file that cannot be used."""
    path = _files().get(name)
    if path is None:
        raise not_found("scenario", name)
    return load_scenario(path)


def _files() -> dict[str, Path]:
    """By stem; a name is looked up among these and never made into a path."""
    return {path.stem: path for directory in directories() for path in sorted(directory.glob("*.y*ml"))}


def refuse_paths(scenario: Scenario, allowed: frozenset[str]) -> None:
    """A request may not name files of this machine, except those that the service was started with."""
    for option in sorted(scenario.job.path_options & scenario.options.keys()):
        value = str(scenario.options[option])
        if value not in allowed:
            detail = f"options.{option}: a request may not name a file; start the service with --allow-file {value}"
            errors = [{"field": f"options.{option}", "message": "may not name a file of the service's machine"}]
            raise Problem(422, "path-refused", detail, errors=errors)
