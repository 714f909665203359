"""A statement of ours as the text that travels: MySQL's protocol of several statements in a packet has no parameters.

Invariant: a value enters the text through `literal` alone, which knows the few types that ours have and quotes by the
rules of the connection; what is text of a handler never comes here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceward.errors import StoreError

_TOKEN = re.compile(
    r"\{(?P<kind>rows|fresh|union|values|identifier) (?P<inner>[^{}]*)\}|\{(?P<latest>latest)\}"
    r"|(?<![\w:]):(?P<name>[a-z_]\w*)"
)
TIDB = "tidb"
_JOINED = {"rows": b", ", "fresh": b", ", "union": b" UNION ALL "}

Params = Mapping[str, Any]
Write = Callable[[Any], bytes]
"""Writes a value."""


def _literal(value: Any, escape: bytes) -> bytes:  # noqa: PLR0911 - one for each type
    if value is None:
        return b"NULL"
    if isinstance(value, bool):
        return b"TRUE" if value else b"FALSE"
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, float):
        return repr(value).encode()
    if isinstance(value, str):
        return b"'" + _escaped(value.encode(), escape) + b"'"
    if isinstance(value, bytes | bytearray | memoryview):
        return b"_binary'" + _escaped(bytes(value), escape) + b"'"
    if isinstance(value, list | tuple | set | frozenset):
        return b"(" + b", ".join([_literal(one, escape) for one in value] or [b"NULL"]) + b")"
    raise TypeError(f"a statement of ours cannot take {value!r}")


def _escaped(text: bytes, escape: bytes) -> bytes:
    if escape:
        text = text.replace(b"\\", escape)
    return text.replace(b"'", b"''")


def literal(value: Any) -> bytes:
    """A value, where a backslash in quotes escapes what follows."""
    return _literal(value, b"\\\\")


def plain_literal(value: Any) -> bytes:
    """A value, where a backslash is a character like any other (`NO_BACKSLASH_ESCAPES`)."""
    return _literal(value, b"")


def identifier(name: str) -> bytes:
    """A name in quotes."""
    return b"`" + name.encode().replace(b"`", b"``") + b"`"


Piece = bytes | str | tuple[str, "Statement"] | tuple[str, str]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement from our files, cut where values belong."""

    pieces: tuple[Any, ...]
    fresh: bool = False
    """It is for those records that the statements before have answered."""
    per_record: bool = False
    """It has a text for each record."""

    @classmethod
    def of(cls, text: str) -> Statement:
        """Cut a text."""
        pieces: list[Any] = []
        kinds = set()
        at = 0
        for found in _TOKEN.finditer(text):
            pieces.append(text[at : found.start()].encode())
            at = found.end()
            if found["name"]:
                pieces.append(found["name"])
            elif found["latest"]:
                pieces.append(("latest", ""))
            else:
                kind, inner = found["kind"], found["inner"]
                kinds.add(kind)
                pieces.append((kind, cls.of(inner) if kind in _JOINED else inner))
        pieces.append(text[at:].encode())
        return cls(tuple(pieces), "fresh" in kinds, bool(kinds & _JOINED.keys()))

    def rendered(self, params: Params, write: Write, records: Sequence[Params] = (), latest: bytes = b"") -> bytes:
        """It with its values; `latest` makes a reading one see what is committed now."""
        parts: list[bytes] = []
        for piece in self.pieces:
            if type(piece) is bytes:
                parts.append(piece)
            elif type(piece) is str:
                parts.append(write(params[piece]))
            else:
                kind, inner = piece
                parts.append(_special(kind, inner, params, write, records, latest))
        return b"".join(parts)


def _special(  # noqa: PLR0913, PLR0917 - the parts of `rendered`
    kind: str, inner: Any, params: Params, write: Write, records: Sequence[Params], latest: bytes
) -> bytes:
    if kind == "latest":
        return latest
    if kind == "identifier":
        return identifier(params[inner])
    if kind == "values":
        return b", ".join([b"(%s)" % write(one) for one in params[inner]])
    each = records or (params,)
    return _JOINED[kind].join([inner.rendered({**params, **record}, write) for record in each])


class Named(dict[str, Sequence[Statement]]):
    """Statements by name, in the words of a server."""

    def __init__(self, texts: Mapping[str, Sequence[str]], server: str) -> None:
        super().__init__({name: [Statement.of(part) for part in parts] for name, parts in texts.items()})
        self.server = server

    @property
    def is_tidb(self) -> bool:
        """Whether a row that is tried and is locked is an error; elsewhere it is left out."""
        return self.server == TIDB


PACKET = 1 << 20
"""Statements of more bytes than this do not share a packet."""


def packets(statements: Sequence[bytes], largest: int) -> list[bytes]:
    """Statements as what is sent at a time. Raises for one that the server would refuse, with the connection."""
    found: list[bytes] = []
    waiting: list[bytes] = []
    size = 0
    for one in statements:
        if len(one) >= largest:
            raise StoreError(
                f"a message needs a statement of {len(one)} bytes, and the server takes {largest} "
                "(max_allowed_packet); raise that, or keep large bodies in a blob store (Inbox(blobs=...))"
            )
        if waiting and size + len(one) > min(PACKET, largest):
            found.append(b";\n".join(waiting))
            waiting, size = [], 0
        waiting.append(one)
        size += len(one) + 2
    return [*found, b";\n".join(waiting)] if waiting else found
