"""Retention: what is old goes in small transactions beside live traffic; personal data can be erased.

A protocol of its own: a store that lets its rows expire by itself may lack it, and declares that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from onceward.flow import Flow
from onceward.stores.moves.operations import Order

What = Literal["bodies", "messages", "runs"]
"""What is pruned, in this order."""


class PruneBatch(NamedTuple):
    """Remove what is old among the next rows."""

    what: What
    after: int
    """Up to which number it was looked at before."""
    keep: float
    """For how many seconds it is kept."""
    limit: int
    archive_first: bool
    """Bodies are archived before they go."""


class PrunedBatch(NamedTuple):
    """What was removed."""

    after: int | None
    """Where to go on; None at the end."""
    removed: int


class StoredBody(NamedTuple):
    """What is kept of a message's content, for a search."""

    seq: int
    type: str
    source: str
    key: str | None
    headers: str | None
    body: bytes | None
    status: str


class StoredCase(NamedTuple):
    """What is kept of a mismatch, for a search."""

    case: int
    seq: int
    type: str
    source: str
    key: str | None
    headers: str | None
    body: bytes | None
    status: str


class Archivable(NamedTuple):
    """A finished message whose body is old."""

    seq: int
    source: str
    consumer: str
    id: str
    type: str
    version: int
    key: str | None
    key_from: str | None
    position: int | None
    headers: str | None
    body: bytes | None
    sha256: str
    destination: str | None
    cause: int | None
    received_at: int
    result: str | None


class RetentionMoves(Protocol):
    """What keeps the tables small, and what erases."""

    def take_turn(self, task: str, every: float, /) -> Flow[bool]:
        """Take the turn at a task of maintenance if it is due; the next one is due after so many seconds."""

    def give_turn(self, task: str, /) -> Flow[None]:
        """The turn has not done everything: the next one is due at once."""

    def latest_sources(self) -> Flow[dict[str, float]]:
        """The sources that may redeliver longest, and for how many seconds."""

    def rotate_partition(self, seconds: float, /) -> Flow[None]:
        """Use another partition of bodies after so many seconds; raises `RightsMissing` where that is not allowed."""

    def old_partitions(self, keep: float, /) -> Flow[list[int]]:
        """The partitions whose bodies are all older than so many seconds."""

    def drop_partition(self, partition: int, lock_wait: float, /, *, archive_first: bool) -> Flow[bool]:
        """Drop a partition of bodies; False where an unfinished message has its body there."""

    def prune_batch(self, batch: PruneBatch, /) -> Flow[PrunedBatch]:
        """Remove what is old among the next rows; never what is unfinished, dead, in quarantine or unknown."""

    def forget_effects(self, keep: float, /) -> Flow[None]:
        """Forget external calls whose messages are forgotten."""

    def bodies_after(self, seq: int, limit: int, /) -> Flow[list[StoredBody]]:
        """The next messages and their content."""

    def cases_after(self, case: int, limit: int, /) -> Flow[list[StoredCase]]:
        """The next mismatches and their content."""

    def same_id(self, source: str, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        """The messages of an id, for every consumer, and what their handlers sent."""

    def erase(self, order: Order, /) -> Flow[list[str] | None]:
        """Erase a finished message's content; returns the blobs it referred to, None where it is not finished."""

    def archivable(self, after: int, keep: float, limit: int, /) -> Flow[list[Archivable]]:
        """The next finished messages whose bodies are older than so many seconds."""

    def drop_bodies(self, seqs: Sequence[int], /) -> Flow[int]:
        """Remove bodies that are archived; returns how many."""
