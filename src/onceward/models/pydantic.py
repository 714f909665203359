"""Models of Pydantic 2. Data is validated as JSON, so that strict models take dates and decimals from text."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core.core_schema import ErrorType

from onceward.domain import payload
from onceward.models.model import misfit, name_of

_OF_THE_MODEL = {
    *("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "field_type", "pattern", "expected"),
    *("expected_tags", "discriminator", "class_name", "class", "max_digits", "decimal_places", "whole_digits"),
    *("expected_schemes", "expected_version", "tz_expected", "function_name"),
}
"""What a message may be filled with: the model says it, not the data."""


class PydanticModel:
    """Whatever Pydantic can validate."""

    def __init__(self, wanted: Any) -> None:
        self.name = name_of(wanted)
        self._wanted = wanted if isinstance(wanted, type) else ()
        self._adapter: TypeAdapter[Any] = TypeAdapter(wanted)

    def read(self, data: Any, body: bytes | None) -> Any:
        """As the class."""
        if body is None and self._wanted and isinstance(data, BaseModel) and isinstance(data, self._wanted):
            return data
        try:
            return self._adapter.validate_json(payload.encode(data) if body is None else body)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            problem = misfit(self.name, ((self._path(one["loc"]), _told(one)) for one in found))
        raise problem

    def schema(self) -> dict[str, Any]:
        """As Pydantic makes it."""
        return self._adapter.json_schema()

    @cached_property
    def _fields(self) -> set[str]:
        """The names that the model gives its fields: whatever else is in a path comes from the data."""
        return set(_named(self.schema()))

    def _path(self, place: tuple[str | int, ...]) -> str:
        parts = [f".{one}" if isinstance(one, str) and one in self._fields else "[]" for one in place]
        return "".join(parts).removeprefix(".")


def _named(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        for one in schema.values():
            yield from _named(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _named(one)


_KNOWN = frozenset(typing.get_args(ErrorType))


def _told(error: Any) -> str:
    """What is wrong; where that would quote the data, or a validator of the model, only which kind of error it is."""
    kind: str = error["type"]
    if kind in _KNOWN and {*error.get("ctx", ())} <= _OF_THE_MODEL:
        return str(error["msg"])
    return kind.replace("_", " ")
