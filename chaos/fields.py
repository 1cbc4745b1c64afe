"""Values out of documents, each with a refusal that names its field. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.errors import InvalidFault


def one_of(data: object, names: tuple[str, ...], where: str, expected: str) -> Mapping[str, object]:
    """A mapping with exactly one of these names."""
    if not isinstance(data, Mapping) or len(data) != 1 or next(iter(data)) not in names:
        raise InvalidFault(f"must be {expected}, not {data!r}", field=where)
    return data


def text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidFault(f"must be a text that is not empty, not {value!r}", field=where)
    return value


def true(value: object, where: str) -> None:
    if value is not True:
        raise InvalidFault(f"must be true, not {value!r}", field=where)


def whole(value: object, where: str, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidFault(f"must be a whole number of at least {least}, not {value!r}", field=where)
    return value
