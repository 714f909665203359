"""Encoding: what JSON has no form for, as something that it has; the same for the same value in every process.

Times as ISO 8601, decimals and UUIDs as text, an Enum as its value, bytes as base64, sets in order; models as their
packages write them.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID


def encodable(value: Any) -> Any:  # noqa: C901, PLR0911 - one for each kind of value
    """For `json`: what it does not know, in what it does. Raises `TypeError` where there is no such form."""
    if hasattr(value, "__pydantic_serializer__"):
        return _of_pydantic(value)
    if hasattr(value, "__struct_config__"):
        import msgspec  # noqa: PLC0415 - the value is of it

        return msgspec.to_builtins(value, order="deterministic", str_keys=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, AbstractSet):
        return _in_order(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def key_form(value: Any) -> Any:
    """What a key is compared by, where it is no data of JSON; None where it would not always be the same text."""
    if isinstance(value, UUID):
        return str(value)
    return value.value if isinstance(value, Enum) else None


def _of_pydantic(value: Any) -> Any:
    """As Pydantic writes it, with its sets in order: in each process they come in another one."""
    write = value.__pydantic_serializer__.to_python
    return _sets_ordered(write(value, mode="json", by_alias=True), write(value, by_alias=True))


def _sets_ordered(written: Any, value: Any) -> Any:
    if isinstance(written, dict) and isinstance(value, dict) and len(written) == len(value):
        pairs = zip(written.items(), value.values(), strict=True)
        return {name: _sets_ordered(one, each) for (name, one), each in pairs}
    if isinstance(written, list) and isinstance(value, AbstractSet):
        return _in_order(written)
    if isinstance(written, list) and isinstance(value, list | tuple) and len(written) == len(value):
        return [_sets_ordered(one, each) for one, each in zip(written, value, strict=True)]
    return written


def _in_order(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=lambda one: json.dumps(one, default=encodable, sort_keys=True))
