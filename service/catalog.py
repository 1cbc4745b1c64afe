"""What a run can be made of: the scenarios and workloads that REST requests may name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import chaos
from chaos.errors import InvalidScenario
from chaos.scenario import Scenario, load_scenario
from chaos.suite import Suite, load_suite
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
            found[path.stem] = _scenario(path, path.stat().st_mtime_ns)
        except (InvalidScenario, OSError):
            continue
    return found


@cache
def _scenario(path: Path, changed_at: int) -> Scenario:
    """Read once for each change of the file: lists of them are asked for with every page."""
    del changed_at
    return load_scenario(path)


@cache
def _suite(path: Path, changed_at: int) -> Suite:
    """As `_scenario`; a suite also names other files, whose changes it shows after a restart."""
    del changed_at
    return load_suite(path)


def scenario_named(name: str) -> Scenario:
    """Raises Problem 404, and InvalidScenario for a file that cannot be used."""
    path = _files().get(name)
    if path is None:
        raise not_found("scenario", name)
    return load_scenario(path)


def _files() -> dict[str, Path]:
    """By stem; a name is looked up among these and never made into a path."""
    paths = [path for directory in directories() for path in sorted(directory.glob("*.y*ml"))]
    return {path.stem: path for path in paths if not _is_suite(path)}


def suites() -> Mapping[str, Suite]:
    """All suites by name; a file that cannot be used is left out, `suite_named` says why."""
    found: dict[str, Suite] = {}
    for name, path in _suite_files().items():
        try:
            found[name] = _suite(path, path.stat().st_mtime_ns)
        except InvalidScenario:
            continue
    return found


def suite_named(name: str) -> Suite:
    """Raises Problem 404, and InvalidScenario for a file that cannot be used."""
    path = _suite_files().get(name)
    if path is None:
        raise not_found("suite", name)
    return load_suite(path)


def _suite_files() -> dict[str, Path]:
    """Suites lie beside the scenarios and in a directory of their own; what they hold tells them apart."""
    places = [place for directory in directories() for place in (directory, directory / "suites")]
    paths = [path for place in places for path in sorted(place.glob("*.y*ml"))]
    return {path.stem: path for path in paths if _is_suite(path)}


def _is_suite(path: Path) -> bool:
    try:
        return _names_scenarios(path, path.stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError):
        return False


@cache
def _names_scenarios(path: Path, changed_at: int) -> bool:
    del changed_at
    return any(line.startswith("scenarios:") for line in path.read_text(encoding="utf-8").splitlines())


def refuse_paths(scenario: Scenario, allowed: frozenset[str]) -> None:
    """A request may not name files of this machine, except those that the service was started with."""
    for option in sorted(scenario.job.path_options & scenario.options.keys()):
        value = str(scenario.options[option])
        if value not in allowed:
            detail = f"options.{option}: a request may not name a file; start the service with --allow-file {value}"
            errors = [{"field": f"options.{option}", "message": "may not name a file of the service's machine"}]
            raise Problem(422, "path-refused", detail, errors=errors)
