"""The one place that checks a document against a JSON Schema, so that every refusal names the field."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jsonschema import Draft202012Validator, validators

Path = tuple[str | int, ...]

MISSING: Final = "is missing"


# JSON Schema lets 30.0 pass for an integer; here a count is a whole number, or the document is refused.
_Validator = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """What is wrong and where: `path` leads from the document's root to the value (or the foreign key)."""

    path: Path
    message: str

    @property
    def field(self) -> str:
        """The path as users write it: `faults[0].trigger.at_step`."""
        return field_name(self.path)


def field_name(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def violations(document: object, schema: Mapping[str, object]) -> list[Violation]:
    """Everything in `document` that `schema` forbids, in document order; numbers that JSON has no word for too.

    What is missing comes last: a name that is misspelt is unknown as well, and that says more.
    """
    found = [Violation(path=path, message="must be a finite number") for path in _not_finite(document, ())]
    for error in _Validator(schema).iter_errors(document):
        path: Path = tuple(error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = error.schema.get("properties", {})
            strangers = [key for key in error.instance if key not in known]
            message = f"unknown field; there are: {', '.join(known) or 'none'}"
            found += [Violation(path=(*path, str(key)), message=message) for key in strangers]
        elif error.validator == "required":
            missing = [key for key in error.validator_value if key not in error.instance]
            found += [Violation(path=(*path, key), message=MISSING) for key in missing]
        elif error.validator == "oneOf":
            found += _not_one_of(error.instance, error.validator_value, path)
        else:
            found.append(
                Violation(path=path, message=_plain(error.message) + _exponent(error.validator, error.instance))
            )
    unique = {(violation.path, violation.message): violation for violation in found}
    return sorted(unique.values(), key=lambda one: (one.message == MISSING, [str(part) for part in one.path]))


def _not_one_of(instance: object, forms: list[Mapping[str, Any]], path: Path) -> list[Violation]:
    """If the value is recognisably one of the forms, what is wrong with it as such; else the list of forms."""
    recognised = [form for form in forms if isinstance(instance, Mapping) and set(form["required"]) <= set(instance)]
    if len(recognised) == 1:
        inner = violations(instance, recognised[0])
        return [Violation(path=(*path, *violation.path), message=violation.message) for violation in inner]
    names = ", ".join(" with ".join(form["required"]) for form in forms)
    return [Violation(path=path, message=f"must have exactly one of the forms {names}, not {instance!r}")]


def with_defaults(document: Mapping[str, object], schema: Mapping[str, object]) -> dict[str, object]:
    """The document with the top-level defaults of the schema filled in."""
    properties = schema.get("properties")
    assert isinstance(properties, Mapping)
    defaults = {name: rule["default"] for name, rule in properties.items() if "default" in rule}
    return {**defaults, **document}


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:] if message[:1].isalpha() else message


def _exponent(rule: str, value: object) -> str:
    """To YAML an exponent needs a point and a sign: 1e3 is text."""
    if rule == "type" and isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return f": YAML takes it for text, write {float(value):.15g}"
    return ""


def _not_finite(value: object, path: Path) -> Iterator[Path]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, (*path, index))
