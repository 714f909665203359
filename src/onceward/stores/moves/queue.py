"""Finishing and settling: what a worker does to the messages that it has claimed.

Every move has the claim as its condition: where a row no longer carries it, another worker has the message, and the
move changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypedDict

from onceward.flow import Flow
from onceward.stores.moves.claims import Claim, Claimed
from onceward.stores.moves.ledger import NewRow
from onceward.stores.moves.operations import Order


class AttemptRow(TypedDict):
    """A failed or crashed attempt."""

    seq: int
    attempt: int
    kind: Literal["error", "crash"]
    charged: bool
    error: str
    traceback: str | None
    worker: int
    code_version: str
    fingerprint: str


class Settle(NamedTuple):
    """Charge a claimed message with a failed attempt."""

    seq: int
    worker: int
    token: int
    state: Literal["retry", "dead"]
    delay: float | None
    """When it is tried again, in seconds; None where it is dead."""
    attempt: AttemptRow
    leaves_key: int | None = None
    """The key that goes on without it: it is dead, and does not hold its successors."""
    interrupted: Order | None = None
    """An operator takes its claim away; the audit has that in the same commit."""


class Skip(NamedTuple):
    """A message that is finished without having run, and why."""

    seq: int
    reason: str


@dataclass(slots=True)
class Finish:
    """End the transaction of a group: what its handlers did is committed together with "done"."""

    worker: int
    token: int
    code_version: str
    fence: str
    """As the transaction was begun with: a transaction that a handler has ended is not this one any more."""
    seqs: Sequence[int]
    """The messages that are done."""
    keys: Collection[int] = ()
    """The keys that lose a message."""
    applied: Sequence[int] = ()
    """Messages that are numbered within their key, which has come to their number now."""
    results: Mapping[int, str] = field(default_factory=dict)
    outgoing: Sequence[NewRow] = ()
    forget_bodies: Sequence[int] = ()
    skipped: Sequence[Skip] = ()
    failures: Sequence[Settle] = ()
    """Messages of the claim that failed, and are settled in the same commit."""
    given_back: Sequence[int] = ()
    """Messages of the claim that are not run now, and are free again."""
    then: Claim | None = None
    """The next claim, in the same commit."""


class Finished(NamedTuple):
    """What came with the end of a group's transaction."""

    following: Claimed | None = None
    """The next claim, if one was wanted."""
    promoted: Collection[int] = ()
    """The subscriptions of the messages that waited in its keys and go on now, where the store has such a state."""


class Postpone(NamedTuple):
    """Try a claimed message again later, uncharged: the database was at fault."""

    seq: int
    worker: int
    token: int
    delay: float
    """Seconds before the first repetition; twice as many each time,"""
    longest: float
    """up to so many."""
    most: int | None
    """How often it is postponed; None for ever."""


class Relocate(NamedTuple):
    """Move a claimed message to its place in the order, as its handler finds it."""

    seq: int
    worker: int
    token: int
    leaves: int | None
    """The key that it leaves, by its hash."""
    key_hash: int
    key: str
    aggregate: str | None
    sequence: int | None
    reason: str
    """For the audit."""


class Hasten(NamedTuple):
    """Make messages due that failed while what they depend on was away."""

    subscriptions: Sequence[int]
    destination: str | None
    """Of outgoing messages, where they go."""
    limit: int


class QueueMoves(Protocol):
    """What workers do to messages that they have claimed."""

    # The handler's transaction

    def begin(self, seconds: float, fence: str, /, *, savepoint: bool) -> Flow[None]:
        """Begin the transaction in which handlers run, for so many seconds at most; with a savepoint, if wanted."""

    def savepoint(self) -> Flow[None]:
        """Inside it: keep what was done until here, whatever fails later."""

    def rollback_to_savepoint(self) -> Flow[None]:
        """Inside it: undo what was done since the last savepoint."""

    def finish(self, finish: Finish, /) -> Flow[Finished]:
        """Inside it, and its end: commit it all, or raise and nothing of it has happened.

        Raises `GuardFailed` where a message no longer carries the claim, or the transaction is not the one it was.
        """

    # Without the effects of a handler

    def settle(self, settle: Settle, /) -> Flow[bool]:
        """Charge a message with a failed attempt; False where the claim is gone, and then nothing is written."""

    def postpone(self, postpone: Postpone, /) -> Flow[float | None]:
        """Try a message again later, uncharged; in how many seconds. None where it was postponed often enough."""

    def put_off(self, worker: int, token: int, seqs: Sequence[int], seconds: float, /) -> Flow[None]:
        """Give messages of a claim back, uncharged, not to be claimed for so long."""

    def relocate(self, relocate: Relocate, /) -> Flow[bool]:
        """Move a message within the order and give it back; False where the claim is gone."""

    def hasten(self, hasten: Hasten, /) -> Flow[int]:
        """Make due what has no time of its own (`Retry`); returns how many messages."""
