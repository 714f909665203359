"""Fan-out: a message that came before its type had a consumer becomes one row for each consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from onceward.flow import Flow
from onceward.stores.moves.catalog import Unhandled
from onceward.stores.moves.ledger import Mismatch, NewRow


class UnhandledRow(NamedTuple):
    """A message that waits to be fanned out."""

    seq: int
    source: int
    id: str
    type: str
    version: int
    key: str | None
    headers: str | None
    body: bytes
    consumer: int
    """The service that stored it."""
    stored_id: bytes
    hash: bytes
    place: int
    subscription: int | None
    position: int | None
    key_hash: int | None
    due_at: int | None
    """When it may run, where that was not to be at once."""


class Adoption(NamedTuple):
    """The service's own consumer wants the message: the row stays, and is ready, or scheduled."""

    subscription: int | None
    key_hash: int | None
    sequence: int | None
    unplaced: str | None
    """Its type, where its key cannot be found here: it goes on waiting, for this subscription alone."""
    key: str | None
    aggregate: str | None
    place: int | None
    """None: it keeps its own."""
    due_at: int | None


class Placement(NamedTuple):
    """What becomes of a message that waited."""

    seq: int
    adoption: Adoption | None
    """None where only others want it: then the row goes."""
    copies: Sequence[NewRow]
    """The rows of other consumers. Each keeps the place of the message, whatever came in between."""
    mismatch: Mismatch
    """What it is beside a message that another service has under its id."""
    keys: frozenset[int]
    """The key in which it stands, and the one that it comes to."""
    place: int
    only_key: int | None
    """The key of its only consumer, which others of that key wait for while the database refuses its row;"""
    is_known: bool
    """whether that is known: else all keyed messages of its consumers go on waiting."""


class Wanted(NamedTuple):
    """What can be placed now."""

    types: Sequence[str]
    subscriptions: Sequence[int]


class FanOut(NamedTuple):
    """Place the next messages."""

    catalog: int
    """Under another version nothing is placed."""
    limit: int
    passed: Sequence[int]
    """Messages that the database refused a moment ago."""
    one_by_one: bool
    """Where the database refuses one of them, the others are placed all the same."""
    wanted: Callable[[Sequence[Unhandled]], Wanted]
    names: Mapping[int, str]
    """The names that the caller knows, by their numbers."""
    place: Callable[[UnhandledRow, Mapping[int, str]], Placement]
    """What becomes of a message; the names behind its numbers are given."""


class FannedOut(NamedTuple):
    """What was placed."""

    found: Sequence[int] = ()
    """The messages that were looked at."""
    placed: Sequence[int] = ()
    refused: Mapping[int, Exception] = MappingProxyType({})
    waiting: int = 0
    """How many types wait."""
    outdated: bool = False
    """The catalog has changed: read it, and try again."""
    at_end: bool = False
    """There are no others but those that were passed over."""


class FanOutMoves(Protocol):
    """What a process does that has handlers for messages which waited for them."""

    def fan_out(self, fan_out: FanOut, /) -> Flow[FannedOut]:
        """Turn unhandled messages into one row for each consumer."""
