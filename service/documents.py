"""Documents in files, which anybody may have written: held to rules as bodies of requests are, and fit to be stored."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationError, field_validator

from service.fitting import fit_text
from service.shapes import Shape


class Document(Shape):
    @field_validator("*")
    @classmethod
    def _storable(cls, value: object) -> object:
        return fit_text(value, len(value)) if type(value) is str else value

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Raises ValueError, which names the field, for what is no such document."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{where}: {said}" if where else said) from None
