"""A suite: scenarios, with seeds, repetitions and time limits, as one document; `phoenix nightly` runs it.

name: smoke
budget_s: 180                           no trial begins after so many seconds
seeds: [1, 2]                           of every scenario, unless its entry says otherwise
scenarios:
  - {file: ../kill-one.yaml, repeat: 3}     relative to the suite
  - {file: ../flip.yaml, known_failure: why}   shown, and no failure of the suite; but it is one to pass
  - scenario: {name: ..., workload: ..., steps: ...}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from chaos.errors import InvalidScenario
from chaos.located import Located, parse_located
from chaos.scenario import NAME_PATTERN, Scenario, load_scenario, read_document
from chaos.schema import violations
from chaos.traces import read_traces
from chaos.triggers import MOST_SECONDS

MOST_TRIALS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial of a suite. `name` is that of its scenario, with what tells it from others of the same scenario.

    `known_failure` says why it fails, as long as it does.
    """

    name: str
    scenario: Scenario
    known_failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What runs, in this order; `budget_s`: no trial begins later than that (None: each does)."""

    name: str
    trials: tuple[PlannedTrial, ...]
    description: str = ""
    budget_s: float | None = None


def load_suite(path: Path) -> Suite:
    """Read a YAML (or JSON) file and the scenarios that it names. Raises InvalidScenario with file, line and field."""
    document = parse_located(read_document(path, "suite"), source=str(path))
    try:
        return suite_from(document.value, path.parent)
    except InvalidScenario as error:
        if error.source:
            raise  # a scenario file of the suite: it says where in that file
        raise _at(error, document, str(path)) from error


def suite_from(data: object, directory: Path) -> Suite:
    """`directory`: where the files that the document names lie. Raises InvalidScenario."""
    if isinstance(data, dict) and "workload" in data and "scenarios" not in data:
        raise InvalidScenario("this is a scenario and no suite: run it with `phoenix trial`")
    for violation in violations(data, suite_schema()):
        raise InvalidScenario(violation.message, field=violation.field)
    assert isinstance(data, dict)
    trials = tuple(
        trial
        for index, entry in enumerate(data["scenarios"])
        for trial in _trials({**data, **entry}, directory, f"scenarios[{index}]")
    )
    if len(trials) > MOST_TRIALS:
        raise InvalidScenario(f"stands for {len(trials)} trials; at most {MOST_TRIALS} are run", field="scenarios")
    told = {name: data[name] for name in ("description", "budget_s") if name in data}
    return Suite(name=data["name"], trials=trials, **told)


def suite_schema() -> dict[str, object]:
    """The JSON Schema of a suite document (`phoenix schema suite`)."""
    seeds = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_SECONDS}
    overrides = {
        "seeds": {"type": "array", "items": seeds, "minItems": 1, "uniqueItems": True},
        "repeat": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1},
        "timeout_s": seconds,
    }

    def entry(name: str, rule: Mapping[str, object]) -> dict[str, object]:
        properties = {name: rule, **overrides, "known_failure": {"type": "string", "minLength": 1}}
        return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}

    inline = {"type": "object", "description": "A scenario; see its own schema."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "PHOENIX suite",
        "type": "object",
        "required": ["name", "scenarios"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "pattern": NAME_PATTERN},
            "version": {"const": 1},
            "description": {"type": "string"},
            "budget_s": seconds,
            **overrides,
            "scenarios": {
                "type": "array",
                "minItems": 1,
                "items": {"oneOf": [entry("file", {"type": "string", "minLength": 1}), entry("scenario", inline)]},
            },
        },
    }


def schema_text() -> str:
    """The exported schema as it is published."""
    return json.dumps(suite_schema(), indent=2) + "\n"


def _trials(entry: Mapping[str, Any], directory: Path, where: str) -> Iterator[PlannedTrial]:
    """Of one entry, with what the suite says for all."""
    if "file" in entry:
        part = f"{where}.file"
        try:
            scenario = load_scenario(directory / entry["file"])
        except InvalidScenario as error:
            if error.line is not None:
                raise
            raise InvalidScenario(f"{error.reason} ({part} of the suite)", source=error.source) from error
    else:
        part = f"{where}.scenario"
        try:
            read_traces(entry["scenario"], directory)
            scenario = Scenario.from_json(entry["scenario"])
        except InvalidScenario as error:
            raise InvalidScenario(error.reason, field=f"{part}.{error.field}".rstrip(".")) from error
    seeds, repeat = entry.get("seeds", [scenario.seed]), entry.get("repeat", 1)
    for seed in seeds:
        try:
            one = replace(scenario, seed=seed, timeout_s=entry.get("timeout_s", scenario.timeout_s))
        except InvalidScenario as error:
            raise InvalidScenario(f"with seed {seed}: {error.reason}", field=part) from error
        for index in range(repeat):
            marks = [f"seed{seed}"] * (len(seeds) > 1) + [str(index + 1)] * (repeat > 1)
            name = "-".join([scenario.name, *marks])
            yield PlannedTrial(name=name, scenario=one, known_failure=entry.get("known_failure", ""))


def _at(error: InvalidScenario, document: Located, source: str) -> InvalidScenario:
    return InvalidScenario(error.reason, source=source, line=document.line_of(error.field), field=error.field)
