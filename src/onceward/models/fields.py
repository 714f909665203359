"""The fields of a dataclass or a TypedDict."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


class Field(typing.NamedTuple):
    """A field of a class."""

    name: str
    type: Any
    required: bool


def fields_of(wanted: Any) -> list[Field]:
    """The fields of a dataclass or TypedDict that data fills."""
    hints = typing.get_type_hints(wanted, include_extras=True)
    if typing.is_typeddict(wanted):
        return [Field(name, hint, _is_required(wanted, name, hint)) for name, hint in hints.items()]
    missing = dataclasses.MISSING
    return [
        Field(one.name, hints[one.name], one.default is missing and one.default_factory is missing)
        for one in dataclasses.fields(wanted)
        if one.init
    ]


def _is_required(wanted: Any, name: str, hint: Any) -> bool:
    """Python does not see `NotRequired` itself where annotations are text."""
    while (origin := typing.get_origin(hint)) is not None:
        if origin in (typing.Required, typing.NotRequired):
            return origin is typing.Required
        hint = typing.get_args(hint)[0] if origin is typing.Annotated else None
    return name in wanted.__required_keys__


def unwrapped(wanted: Any) -> Any:
    """A type without what only type checkers read."""
    marks = {
        typing.Annotated,
        typing.Required,
        typing.NotRequired,
        typing.Final,
        getattr(typing, "ReadOnly", typing.Final),
    }
    while True:
        if typing.get_origin(wanted) in marks:
            wanted = typing.get_args(wanted)[0]
        elif hasattr(wanted, "__supertype__") or hasattr(wanted, "__value__"):  # NewType, and `type X = ...`
            wanted = getattr(wanted, "__supertype__", None) or wanted.__value__
        else:
            return wanted
