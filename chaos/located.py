"""YAML (and so JSON) together with the line of every value, so that a mistake can be pointed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from chaos.errors import InvalidScenario
from chaos.schema import Path, field_name

# A scenario takes a few hundred characters. A parser in Python needs a second for this many.
MOST_CHARACTERS: Final = 100_000
# Counted with every alias written out: a few lines of aliases of aliases can stand for millions.
MOST_VALUES: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class Located:
    """A parsed document; `lines` maps field names (`faults[0].kind`) to 1-based lines."""

    value: object
    lines: Mapping[str, int]

    def line_of(self, field: str) -> int | None:
        """The line of a field, or of the nearest part around it that exists in the document."""
        while field and field not in self.lines:
            field = field[: max(field.rfind("."), field.rfind("["), 0)]
        return self.lines.get(field)


def parse_located(text: str, *, source: str) -> Located:
    """Raises InvalidScenario for text that is not YAML, holds a key twice, holds too much, or holds no document."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidScenario(f"longer than {MOST_CHARACTERS} characters: this is no scenario", source=source)
    try:
        return _parse(text, source)
    except RecursionError as error:
        raise InvalidScenario("nested too deeply, or an alias inside of itself", source=source) from error


def _parse(text: str, source: str) -> Located:
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise InvalidScenario("the document is empty", source=source, line=1)
        if _written_out(node, {}) > MOST_VALUES:
            raise InvalidScenario(f"more than {MOST_VALUES} values, with every alias written out", source=source)
        lines: dict[str, int] = {}
        _walk(node, (), lines, source)  # first, because constructing writes merged keys (`<<`) into the nodes
        return Located(value=loader.construct_document(node), lines=lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        raise InvalidScenario(message, source=source, line=mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError) as error:  # a date such as 2026-99-99 is a ValueError of PyYAML's own
        raise InvalidScenario(f"not valid YAML: {error}", source=source) from error


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for; an alias is the same node once more, so each is counted through only once."""
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        below = [part for item in parts for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_written_out(part, known) for part in below)
    return known[id(node)]


def _walk(node: yaml.Node, path: Path, lines: dict[str, int], source: str) -> None:
    lines.setdefault(field_name(path), node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*path, index), lines, source)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, item in node.value:
            name = str(key.value)
            if name in seen:
                # YAML forbids it, PyYAML keeps the last in silence: half of a scenario would vanish unseen.
                raise InvalidScenario(
                    "this key stands here twice",
                    source=source,
                    line=key.start_mark.line + 1,
                    field=field_name((*path, name)),
                )
            seen.add(name)
            lines[field_name((*path, name))] = key.start_mark.line + 1
            _walk(item, (*path, name), lines, source)
