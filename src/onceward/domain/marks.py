"""Marks: how far a source was read, on their way to the transaction that stores what was read before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onceward.message import Arguments


class Mark(NamedTuple):
    """How far a part of a source was read: what came before is stored with it."""

    source: str
    part: str
    since: str | None
    """Where it was before, as the reader knows it from the database; None: the database does not know the part."""
    position: str


class Read(list["Arguments"]):
    """Messages as they were read from a source, and how far that comes to with them."""

    def __init__(self, messages: Iterable[Arguments], marks: Sequence[Mark] = ()) -> None:
        super().__init__(messages)
        self.marks = marks


def marks_of(messages: object) -> Sequence[Mark]:
    """How far a source was read with these; nothing where they are of no source with positions."""
    return messages.marks if isinstance(messages, Read) else ()
