"""A scenario: workload, runtime, cluster shape, planned faults and checks as one document.

The JSON Schema below decides what a document may contain; the dataclass is its typed form. `load_scenario` reads a
file and says of every mistake where it stands (file:line) and which field it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.errors import InvalidFault, InvalidScenario
from chaos.expansion import Campaign, campaign_schema, expand, repeat_ids
from chaos.faults import PlannedFault
from chaos.kinds import FAULT_KINDS, Scope, fault_kind
from chaos.located import MOST_CHARACTERS, Located, parse_located
from chaos.nvml.xid_lines import DRIVERS
from chaos.schema import violations
from chaos.targets import target_schemas
from chaos.traces import read_traces
from chaos.triggers import MOST_FAULTS, MOST_SECONDS, trigger_forms
from chaos.workloads import WORKLOADS, Workload, workload

FAULT_ID_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NAME_PATTERN: Final = "^[a-z0-9][a-z0-9._-]{0,63}$"
NO_GPUS: Final = "none"
ISOLATIONS: Final = ("none", "namespaces")
CHECKS: Final = ("fired", "recovered", "twin", "agreement", "no_leak", "attribution", "data_once", "gpu_health")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Shape of the job: `nodes * ranks_per_node` ranks, and spares on nodes of their own.

    `isolation`: "none" (all nodes share the machine's network) or "namespaces" (each node is a host of its own to it).
    `gpus`: "none", or the generation of the driver of emulated GPUs, one for each rank of a node.
    """

    nodes: int = 4
    ranks_per_node: int = 1
    spares: int = 1
    isolation: str = "none"
    gpus: str = NO_GPUS

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def isolated(self) -> bool:
        return self.isolation != "none"

    def check(self, fault: PlannedFault, *, checkpoints: bool = True) -> None:
        """Raises InvalidFault where the fault cannot happen in this cluster, or in a job without `checkpoints`."""
        if fault_kind(fault.kind).scope is Scope.GPU and self.gpus == NO_GPUS:
            need = f"{fault.kind} needs GPUs: set cluster.gpus to a driver ({', '.join(DRIVERS)})"
            raise InvalidFault(need, field="kind")
        nodes = self.nodes + self.spares
        fault.check_cluster(
            nodes=nodes,
            world_size=self.world_size,
            spares=self.spares,
            isolated=self.isolated,
            checkpoints=checkpoints,
        )

    def to_json(self) -> dict[str, object]:
        shape = {"nodes": self.nodes, "ranks_per_node": self.ranks_per_node, "spares": self.spares}
        return {**shape, "isolation": self.isolation, "gpus": self.gpus}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What one trial does. Every random choice comes from `seed`; `timeout_s` bounds the disturbed run."""

    name: str
    workload: str
    steps: int
    version: int = 1
    description: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    runtime: str = "phoenix"
    cluster: Cluster = field(default_factory=Cluster)
    seed: int = 0
    faults: tuple[PlannedFault, ...] = ()
    campaign: Campaign | None = None
    checks: tuple[str, ...] = CHECKS
    timeout_s: float = 300.0
    checkpoint_every: int | None = None
    """Steps between two checkpoints on disk; None: none, where the runtime can do without."""

    def __post_init__(self) -> None:
        """Relations between fields, which the schema cannot say. Raises InvalidScenario."""
        workload(self.workload).check(self.options)
        taken: set[str] = set()
        repeated: set[str] = set()
        for index, fault in enumerate(self.faults):
            where = f"faults[{index}]"
            ids = {one.id for one in expand(fault, self.seed)}
            again = repeat_ids(fault)
            if both := sorted((taken | repeated) & (ids | again)):
                raise InvalidScenario(f"the id {both[0]!r} is taken by an earlier fault", field=f"{where}.id")
            taken |= ids
            repeated |= again
            if len(taken) > MOST_FAULTS:
                raise InvalidScenario(f"stand for more than {MOST_FAULTS} faults, which are the most", field="faults")
            self._check_fault(fault, where)
        if both := sorted((taken | repeated) & {fault.id for fault in self.drawn}):
            raise InvalidScenario(f"a fault has the id {both[0]!r}, which the campaign gives", field="campaign")

    def _check_fault(self, fault: PlannedFault, where: str) -> None:
        try:
            self.cluster.check(fault, checkpoints=self.checkpoint_every is not None)
            fault.check_phases(self.workload, self.job.phases)
        except InvalidFault as error:
            raise InvalidScenario(error.reason, field=f"{where}.{error.field}") from error
        trigger = fault.trigger.to_json()
        name = "at_step" if "at_step" in trigger else "step"
        step = trigger.get(name)
        if isinstance(step, int) and step >= self.steps:
            message = f"step {step} never comes: the steps are 0..{self.steps - 1}"
            raise InvalidScenario(message, field=f"{where}.trigger.{name}")

    @property
    def job(self) -> Workload:
        return workload(self.workload)

    @property
    def planned(self) -> tuple[PlannedFault, ...]:
        """Every single fault: those that stand for many, and the campaign, written out."""
        return (*(one for fault in self.faults for one in expand(fault, self.seed)), *self.drawn)

    @property
    def drawn(self) -> tuple[PlannedFault, ...]:
        """The faults of the campaign."""
        return () if self.campaign is None else self.campaign.expand(self.seed, isolated=self.cluster.isolated)

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "workload": self.workload,
            "steps": self.steps,
            "options": dict(self.options),
            "runtime": self.runtime,
            "cluster": self.cluster.to_json(),
            "seed": self.seed,
            "faults": [fault.to_json() for fault in self.faults],
            **({} if self.campaign is None else {"campaign": self.campaign.to_json()}),
            "checks": list(self.checks),
            "timeout_s": self.timeout_s,
            **({} if self.checkpoint_every is None else {"checkpoint_every": self.checkpoint_every}),
        }

    @staticmethod
    def from_json(data: object) -> Scenario:
        """Raises InvalidScenario, whose `field` names the first value that is wrong."""
        if isinstance(data, dict) and "scenarios" in data:
            raise InvalidScenario("this is a suite and no scenario: run it with `phoenix nightly`")
        if isinstance(data, dict) and isinstance(faults := data.get("faults"), list) and len(faults) > MOST_FAULTS:
            raise InvalidScenario(f"are {len(faults)}; at most {MOST_FAULTS} are planned at once", field="faults")
        for violation in violations(data, scenario_schema()):
            raise InvalidScenario(violation.message, field=violation.field)
        assert isinstance(data, dict)
        return Scenario(
            **{
                **data,
                "cluster": Cluster(**data.get("cluster", {})),
                "faults": tuple(_fault(fault, index) for index, fault in enumerate(data.get("faults", []))),
                "campaign": _campaign(data.get("campaign")),
                "checks": tuple(data.get("checks", CHECKS)),
            }
        )


def load_scenario(path: Path) -> Scenario:
    """Read a YAML (or JSON) file. Raises InvalidScenario with file, line and field."""
    return parse_scenario(read_document(path, "scenario"), source=str(path), directory=path.parent)


def read_document(path: Path, what: str) -> str:
    """The text of a file. Raises InvalidScenario where there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)  # one more, so that the parser sees that it is too long
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not a text file in UTF-8"
        raise InvalidScenario(f"cannot read the {what}: {reason}", source=str(path)) from error


def parse_scenario(text: str, *, source: str = "scenario", directory: Path | None = None) -> Scenario:
    """As `load_scenario`, from a text; `source` is how messages name it.

    `directory`: where files lie that the text names; a text that came from elsewhere cannot name any.
    """
    document: Located = parse_located(text, source=source)
    try:
        if directory is not None:
            read_traces(document.value, directory)
        return Scenario.from_json(document.value)
    except InvalidScenario as error:
        line = document.line_of(error.field)
        raise InvalidScenario(error.reason, source=source, line=line, field=error.field) from error


def scenario_schema() -> dict[str, object]:
    """The JSON Schema of a scenario document (`phoenix schema scenario`)."""
    count = {"type": "integer", "minimum": 1, "maximum": 1024}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "PHOENIX scenario",
        "type": "object",
        "required": ["name", "workload", "steps"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "pattern": NAME_PATTERN},
            "version": {"const": 1},
            "description": {"type": "string"},
            "workload": {"enum": list(WORKLOADS)},
            "steps": {"type": "integer", "minimum": 1, "maximum": 100_000_000},
            "options": {"type": "object", "description": "Options of the workload; see its own schema."},
            "runtime": {"type": "string", "minLength": 1, "default": "phoenix"},
            "cluster": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "nodes": {**count, "default": 4},
                    "ranks_per_node": {**count, "default": 1},
                    "spares": {"type": "integer", "minimum": 0, "maximum": 1024, "default": 1},
                    "isolation": {"enum": list(ISOLATIONS), "default": "none"},
                    "gpus": {"enum": [NO_GPUS, *DRIVERS], "default": NO_GPUS},
                },
            },
            "seed": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "default": 0},
            "faults": {"type": "array", "items": fault_schema(), "maxItems": MOST_FAULTS},
            "campaign": campaign_schema(),
            "checks": {"type": "array", "uniqueItems": True, "items": {"enum": list(CHECKS)}},
            "timeout_s": {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_SECONDS, "default": 300.0},
            "checkpoint_every": {"type": "integer", "minimum": 2, "maximum": 100_000_000},
        },
    }


def fault_schema() -> dict[str, object]:
    """The JSON Schema of a planned fault; also of a live request, in which `id` may be left out."""
    return {
        "type": "object",
        "required": ["kind", "target"],
        "properties": {
            "id": {"type": "string", "pattern": FAULT_ID_PATTERN},
            "kind": {"enum": list(FAULT_KINDS)},
            "target": {"oneOf": target_schemas()},
            "trigger": {"oneOf": trigger_forms(), "default": {"now": True}},
            "params": {"type": "object"},
            "reason": {"type": "string"},
        },
        "additionalProperties": False,
    }


def schema_text() -> str:
    """The exported schema as it is published."""
    return json.dumps(scenario_schema(), indent=2) + "\n"


def _fault(data: Mapping[str, object], index: int) -> PlannedFault:
    try:
        return PlannedFault.from_json(data, id=f"fault-{index + 1}")
    except InvalidFault as error:
        raise InvalidScenario(error.reason, field=f"faults[{index}].{error.field}") from error


def _campaign(data: Mapping[str, object] | None) -> Campaign | None:
    try:
        return None if data is None else Campaign.from_json(data)
    except InvalidFault as error:
        raise InvalidScenario(error.reason, field=f"campaign.{error.field.rpartition('.')[2]}") from error
