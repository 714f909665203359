"""Columns of many records as PostgreSQL's binary arrays, made in one go.

psycopg looks at every element of a list to find its type; here the type is known, because the statement names it
(`%(seqs)b::bigint[]`), and that is the larger part of what a message costs on its way in.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import AdaptContext

# The element type's oid and the array's, as PostgreSQL has numbered them for good.
_OIDS = {"integer": (23, 1007), "bigint": (20, 1016), "text": (25, 1009), "bytea": (17, 1001)}
_PARAMETER = re.compile(r"%\((\w+)\)b::(\w+)\[\]")
_HEAD = struct.Struct("!iiIii")
_SIZE = struct.Struct("!i")
_NULL = _SIZE.pack(-1)


def kinds(statement: str) -> dict[str, str]:
    """The parameters of a statement that are columns, and the type of each."""
    return dict(_PARAMETER.findall(statement))


class Column:
    """Values of one type."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: str, values: Sequence[Any]) -> None:
        self.kind, self.values = kind, values


def teach(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Let a connection take columns."""
    connection.adapters.register_dumper(Column, ColumnDumper)


def as_columns(params: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a statement, its columns ready to be sent."""
    return {name: Column(types[name], value) if name in types else value for name, value in params.items()}


class ColumnDumper(Dumper):
    """Writes a column."""

    format = Format.BINARY

    def __init__(self, cls: type, context: AdaptContext | None = None, kind: str = "") -> None:
        super().__init__(cls, context)
        if kind:
            self._element, self.oid = _OIDS[kind]
            self._write = _WRITERS[kind]

    def get_key(self, obj: Column, format: PyFormat) -> Any:  # noqa: A002, ARG002 - psycopg's signature
        return (self.cls, obj.kind)

    def upgrade(self, obj: Column, format: PyFormat) -> ColumnDumper:  # noqa: A002, ARG002 - psycopg's signature
        return ColumnDumper(self.cls, kind=obj.kind)

    def dump(self, obj: Column) -> bytes:
        values = obj.values
        nulls = None in values
        head = _HEAD.pack(1 if values else 0, nulls, self._element, len(values), 1)
        return (head if values else head[:12]) + self._write(values)


def _integers(code: str) -> Callable[[Sequence[int | None]], bytes]:
    one = struct.Struct(f"!i{code}")
    size = struct.calcsize(f"!{code}")
    pair = f"i{code}"

    def write(values: Sequence[int | None]) -> bytes:
        if None in values:
            return b"".join([_NULL if value is None else one.pack(size, value) for value in values])
        return struct.pack("!" + pair * len(values), *[part for value in values for part in (size, value)])

    return write


def _bytes(values: Sequence[bytes | None]) -> bytes:
    size = _SIZE.pack
    return b"".join([_NULL if value is None else size(len(value)) + value for value in values])


def _texts(values: Sequence[str | None]) -> bytes:
    return _bytes([None if value is None else value.encode() for value in values])


_WRITERS: dict[str, Callable[[Sequence[Any]], bytes]] = {
    "integer": _integers("i"),
    "bigint": _integers("q"),
    "text": _texts,
    "bytea": _bytes,
}
