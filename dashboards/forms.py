"""From a fault kind's JSON Schema to the fields of its form. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.api import Json

TARGETS = {
    "rank": "One rank",
    "random_rank": "A random rank",
    "spare": "A spare",
    "node": "All of a node",
    "coordinator": "The coordinator",
    "store": "The launcher, which holds the store",
}
TRIGGERS = {"now": "Now", "at_step": "At a step", "after_s": "After seconds", "phase": "On entering a phase"}
PHASES = ("forward", "backward", "gradient_sync", "optimizer")
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
        type="choice" if choices else str(known),
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
