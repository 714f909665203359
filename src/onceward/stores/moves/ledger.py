"""Receiving: what is stored of a delivery, and how a store knows one that it has seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict

from onceward.domain import identity
from onceward.domain.marks import Mark
from onceward.flow import Flow
from onceward.message import Delivery


class NewRow(TypedDict):
    """A message as one consumer gets it. A mapping, for it is what the store's statements take as it is."""

    ordinal: int
    """Which of the rows of a move it is, to tell the answers apart."""
    consumer: int
    source: int
    stored_id: bytes
    hash: bytes
    type_hash: int
    subscription: int | None
    key_hash: int | None
    slot: int
    """Of its key, or of its id where it has none (`identity.slot`)."""
    id: str
    type: str
    version: int
    key: str | None
    key_from: str | None
    aggregate: str | None
    position: int | None
    headers: str | None
    body: bytes
    place: int | None
    """Where it stands in its key; None: where it comes. What is not due yet stands last of all (`LAST_PLACE`)."""
    sequence: int | None
    destination: str | None
    cause: int | None
    unplaced: str | None
    """Its type, where it waits to be fanned out."""
    due_at: int | None
    """When it is due, where that is not at once;"""
    due_in: int | None
    """or in how many microseconds."""


class Stored(NamedTuple):
    """A row that was stored."""

    seq: int
    received_at: int


class Known(NamedTuple):
    """What the ledger has under the identity of a row."""

    seq: int
    hash: bytes
    type_hash: int
    finished: bool
    result: Any
    age: float = 0.0
    """How many seconds ago it was stored."""

    @property
    def is_imported(self) -> bool:
        """Whether it was handled before onceward was there; then its id is all that is known of it."""
        return self.hash == identity.UNKNOWN_HASH

    def is_same(self, delivery: Delivery) -> bool:
        """Whether a delivery of this id is a copy: the same bytes, under the same type and version.

        Of an imported id there is nothing to compare with: whatever comes under it is a copy, and never runs.
        """
        return self.is_imported or (self.hash, self.type_hash) == (delivery.hash, delivery.type_hash)


class ImportedId(TypedDict):
    """An id that was handled elsewhere, as one consumer has it. A mapping, as `NewRow`."""

    ordinal: int
    consumer: int
    source: int
    stored_id: bytes
    slot: int
    """Of the id: nothing is known of its key."""
    age: int
    """How many microseconds ago it was handled, as far as that is known."""


class Mismatch(TypedDict):
    """A delivery that came under the id of another, with other bytes or another type."""

    seq: int
    """The message whose id it has."""
    hash: bytes
    type_hash: int
    type: str
    version: int
    key: str | None
    position: int | None
    headers: str | None
    body: bytes
    due_at: int | None
    due_in: int | None


class Decided(NamedTuple):
    """What is decided about a mismatch."""

    resolution: str | None
    """None while it waits for an operator."""
    accepted: Known | None
    """The message that it was accepted as."""


class FirstSeen(NamedTuple):
    """A body of a source whose ids are not signed."""

    source: int
    hash: bytes
    id: str
    window: float
    """For how many seconds the first id is remembered."""


class LedgerMoves(Protocol):
    """What receivers do."""

    def receive(self, rows: Sequence[NewRow], catalog: int, marks: Sequence[Mark] = (), /) -> Flow[dict[int, Stored]]:
        """Store rows that are not known, ready to be claimed; returns them by ordinal. Keep the marks with them.

        Under another version of the catalog than this one, nothing is stored. Where a row has no subscription, a
        process that subscribes to its type sees it.
        """

    def send(self, rows: Sequence[NewRow], /, *, notify: bool) -> Flow[dict[int, Stored]]:
        """Store outgoing messages that are not known; returns them by ordinal.

        In a caller's transaction, relays are notified when that commits.
        """

    def keep_positions(self, marks: Sequence[Mark], /) -> Flow[None]:
        """Keep how far a source was read where nothing was new. A mark whose `since` is not true changes nothing."""

    def positions(self, source: str, /) -> Flow[dict[str, str]]:
        """How far the parts of a source were read."""

    def look_up(self, rows: Sequence[NewRow], unplaced: Collection[str], /) -> Flow[dict[int, Known]]:
        """What is known under the identities of rows, by ordinal.

        Of the types in `unplaced`, a message that came before its type had a consumer is known to all its consumers.
        """

    def import_ids(self, rows: Sequence[ImportedId], /) -> Flow[int]:
        """Remember ids that were handled elsewhere, as finished messages without a body; returns how many were new.

        What is known of an id already stays as it is.
        """

    def count_known(self, rows: Sequence[ImportedId], /) -> Flow[int]:
        """How many of these ids are known; changes nothing."""

    def ages(self, seqs: Sequence[int], /) -> Flow[dict[int, float]]:
        """How many seconds ago messages were stored."""

    def count_copies(self, copies: Mapping[int, int], /) -> Flow[None]:
        """Count copies of messages, by their numbers."""

    def quarantine(self, mismatch: Mismatch, /) -> Flow[Decided | None]:
        """Keep a mismatch until an operator decides; None where the message whose id it has is gone."""

    def first_seen(self, bodies: Sequence[FirstSeen], /) -> Flow[list[str]]:
        """Under which id each body came first, within its window; forgets some whose window is over."""

    def referred(self, blobs: Sequence[str], /) -> Flow[set[str]]:
        """Which of these blobs some message refers to."""

    def blob_folder(self) -> Flow[str]:
        """The part of the blob store that belongs to these tables."""
