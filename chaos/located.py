"""YAML (and so JSON) together with the line of every value, so that a mistake can be pointed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from chaos.errors import InvalidScenario
from chaos.schema import Path, field_name


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
    """Raises InvalidScenario for text that is not YAML, holds a key twice, or holds no document."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        raise InvalidScenario(message, source=source, line=mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError) as error:  # a date such as 2026-99-99 is a ValueError of PyYAML's own
        raise InvalidScenario(f"not valid YAML: {error}", source=source) from error
    if node is None:
        raise InvalidScenario("the document is empty", source=source, line=1)
    lines: dict[str, int] = {}
    try:
        _walk(node, (), lines, source)
    except RecursionError as error:
        raise InvalidScenario("nested too deeply, or an alias inside of itself", source=source) from error
    return Located(value=value, lines=lines)


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
