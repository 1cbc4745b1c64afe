"""The fault form: from a kind's JSON Schema to its fields, and what a run lets one choose. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.api import Json
from dashboards.waterfall import PHASES

TARGETS = {
    "rank": "One rank",
    "random_rank": "A random rank",
    "spare": "A spare",
    "node": "All of a node",
    "coordinator": "The coordinator",
    "store": "The launcher, which holds the store",
}
TRIGGERS = {
    "now": "Now",
    "at_step": "At a step",
    "after_s": "After seconds",
    "phase": "On entering a phase",
    "recovery_phase": "In a recovery",
    "poisson": "At random",
    "trace": "At given times",
}
RECOVERY_PHASES = tuple(PHASES)
LIST_RANKS_UP_TO = 64
"""A list is quicker than typing up to here; beyond it, a number field."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One parameter; `type` is what the script makes of the text: integer, number, boolean, string, choice, json."""

    name: str
    title: str
    type: str
    hint: str = ""
    default: str = ""
    required: bool = False
    least: float | None = None
    most: float | None = None
    choices: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One fault kind as the form offers it."""

    kind: str
    title: str
    description: str
    lasting: bool
    fidelity: str
    targets: str
    triggers: str
    fields: Sequence[Field]
    unsupported: str = ""
    """Why this host cannot inject it; empty if it can."""


@dataclass(frozen=True, kw_only=True)
class FaultForm:
    """`ranks` and `nodes` are None where there are too many for a list; `phases` are those that the workload enters."""

    run: str
    kinds: Sequence[Kind]
    phases: Sequence[str]
    recovery_phases: Sequence[str]
    nodes: Sequence[str] | None
    world: int
    spares: int
    last_step: int
    ranks: Sequence[int] | None
    targets: dict[str, str]
    triggers: dict[str, str]


def fault_form(run: Json, described: Sequence[Json], workloads: Sequence[Json]) -> FaultForm:
    """What can be asked of this run; kinds that the host cannot inject come last, with the reason."""
    world = run["cluster"]["nodes"] * run["cluster"]["ranks_per_node"]
    nodes = run["cluster"]["nodes"] + run["cluster"]["spares"]
    phases = next((item["phases"] for item in workloads if item["name"] == run["workload"]), ())
    return FaultForm(
        run=run["id"],
        kinds=sorted(kinds(described), key=lambda kind: bool(kind.unsupported)),
        phases=list(phases),
        recovery_phases=RECOVERY_PHASES,
        nodes=[f"n{index}" for index in range(nodes)] if nodes <= LIST_RANKS_UP_TO else None,
        world=world,
        spares=run["cluster"]["spares"],
        last_step=run["steps"] - 1,
        ranks=range(world) if world <= LIST_RANKS_UP_TO else None,
        targets=TARGETS,
        triggers=TRIGGERS,
    )


def can_strike(run: Json) -> bool:
    """Once the disturbed run is over, what still runs is its twin and the checks: nothing to strike there."""
    return run["state"] == "RUNNING" and run.get("part") in (None, "run")


def kinds(described: Sequence[Json]) -> list[Kind]:
    """The kinds of GET /fault-kinds. A kind that does not list its targets or triggers takes all."""
    return [
        Kind(
            kind=item["kind"],
            title=item.get("title") or item["kind"],
            description=item.get("description") or "",
            lasting=bool(item.get("lasting")),
            fidelity=str(item.get("fidelity") or ""),
            targets=" ".join(_names(item.get("targets"), TARGETS)),
            triggers=" ".join(_names(item.get("triggers"), TRIGGERS)),
            fields=fields(item.get("params_schema") or {}),
            unsupported=""
            if item.get("supported", True)
            else str(item.get("unsupported_reason") or "not on this host"),
        )
        for item in described
    ]


def fields(schema: Json) -> list[Field]:
    """One field per property of an object schema, in its order."""
    required = set(schema.get("required", ()))
    return [_field(name, part, name in required) for name, part in schema.get("properties", {}).items()]


def _field(name: str, schema: Json, required: bool) -> Field:
    # Optional values arrive as `anyOf: [{...}, {"type": "null"}]`; an empty field stands for null.
    variants = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    part = {**schema, **variants[0]} if len(variants) == 1 else schema
    choices = [str(choice) for choice in part.get("enum", ())]
    known = part.get("type") if part.get("type") in ("integer", "number", "boolean", "string") else "json"
    default = part.get("default")
    return Field(
        name=name,
        title=str(part.get("title") or name),
        type="choice" if choices and known not in ("integer", "number") else str(known),
        hint=str(part.get("description") or ""),
        default="" if default is None else (str(default).lower() if isinstance(default, bool) else str(default)),
        required=required,
        least=part.get("minimum", part.get("exclusiveMinimum")),
        most=part.get("maximum", part.get("exclusiveMaximum")),
        choices=choices,
    )


def _names(given: Any, known: dict[str, str]) -> list[str]:
    listed = [name for name in given or () if name in known]
    return listed or list(known)
