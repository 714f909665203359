"""The JSON schema of a plain model."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import abc
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from onceward.models.fields import fields_of, unwrapped

_SIMPLE: dict[Any, dict[str, Any]] = {
    Any: {},
    object: {},
    None: {"type": "null"},
    type(None): {"type": "null"},
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": ["string", "number"], "format": "decimal"},
    bytes: {"type": "string", "contentEncoding": "base64"},
}
_SETS = (set, frozenset, abc.Set)


def of(wanted: Any) -> dict[str, Any]:
    """The schema of a type that `PlainModel` reads; classes that it has are in `$defs`."""
    known: dict[str, dict[str, Any]] = {}
    schema = _of(wanted, known)
    return {**schema, "$defs": known} if known else schema


def _of(wanted: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:  # noqa: PLR0911 - one for each kind
    wanted = unwrapped(wanted)
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is None and isinstance(wanted, abc.Hashable) and wanted in _SIMPLE:
        return _SIMPLE[wanted]
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(one, known) for one in arguments]}
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return {"title": wanted.__name__, "enum": [one.value for one in wanted]}
    if (origin or wanted) in (dict, abc.Mapping, abc.MutableMapping):
        return {"type": "object", "additionalProperties": _of(arguments[1] if arguments else Any, known)}
    if dataclasses.is_dataclass(wanted) or typing.is_typeddict(wanted):
        return _of_class(wanted, known)
    if (origin or wanted) is tuple and arguments and arguments[-1] is not ...:
        return {"type": "array", "prefixItems": [_of(one, known) for one in arguments], "items": False}
    unique = {"uniqueItems": True} if (origin or wanted) in _SETS else {}
    return {"type": "array", "items": _of(arguments[0] if arguments else Any, known), **unique}


def _of_class(wanted: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = wanted.__name__
    if name not in known:
        known[name] = {}  # it may refer to itself
        fields = fields_of(wanted)
        known[name] = {
            "title": name,
            "type": "object",
            "properties": {field.name: _of(field.type, known) for field in fields},
            "required": [field.name for field in fields if field.required],
        }
    return {"$ref": f"#/$defs/{name}"}
