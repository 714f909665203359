"""Handling messages as they come: they are received and handled in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypedDict

from onceward.domain.marks import Mark
from onceward.flow import Flow
from onceward.stores.moves.ledger import NewRow, Stored
from onceward.stores.moves.queue import AttemptRow, Skip


class Applied(NamedTuple):
    """The number that a key has come to."""

    consumer: int
    aggregate: str
    key: str | None
    sequence: int


class BeginDirect(NamedTuple):
    """Begin the transaction that receives messages and handles them, or queues them."""

    rows: Sequence[NewRow]
    catalog: int
    runs: Collection[int] = ()
    """Which of them may run, by ordinal; without any it is a short transaction, which only stores."""
    seconds: float = 0.0
    """How long a handler may take."""
    fence: str = ""
    savepoint: bool = False
    """With one behind what is received, for a batch that goes on when one of its messages fails."""
    returns_soon: bool = False
    """The caller waits for the result and comes again: it need not wait for a writer as long as a worker does."""
    inside: bool = False
    """In a transaction of the caller's: what is received is queued before a handler runs, behind it a savepoint. So
    it is in no moment done without its handler's effects, also where that commits what it must not."""


class Begun(NamedTuple):
    """What is received, and what may run of it."""

    stored: Mapping[int, Stored]
    """By ordinal. Where it is empty, nothing is open: all is known, or the catalog has changed."""
    busy: Collection[int] = ()
    """Keys, by their hashes, that others hold or that have unfinished messages."""
    applied: Mapping[tuple[int, str, str | None], int] = {}
    """How far keys are, by consumer, namespace and key, where a message is numbered; none: nothing is applied."""


class Enqueued(TypedDict):
    """The queue row of a message that this transaction has received and not handled."""

    seq: int
    subscription: int | None
    key_hash: int | None
    slot: int
    place: int
    sequence: int | None
    unplaced: str | None
    state: Literal["ready", "retry", "dead"]
    after: int | None
    """In how many microseconds it is due."""
    attempts: int


def enqueued(row: NewRow, seq: int, place: int | None = None) -> Enqueued:
    """The queue row of a message that did not run."""
    if place is None:
        place = seq if row["place"] is None else row["place"]
    return {
        "seq": seq,
        "subscription": row["subscription"],
        "key_hash": row["key_hash"],
        "slot": row["slot"],
        "place": place,
        "sequence": row["sequence"],
        "unplaced": row["unplaced"],
        "state": "ready",
        "after": None,
        "attempts": 0,
    }


@dataclass(slots=True)
class FinishDirect:
    """End that transaction: messages, effects and "done" are one commit, and so are the rows of what is queued."""

    worker: int
    code_version: str
    fence: str
    seqs: Sequence[int] = ()
    """The messages that are done."""
    results: Mapping[int, str] = field(default_factory=dict)
    outgoing: Sequence[NewRow] = ()
    applied: Sequence[Applied] = ()
    forget_bodies: Sequence[int] = ()
    skipped: Sequence[Skip] = ()
    queued: Sequence[Enqueued] = ()
    attempts: Sequence[AttemptRow] = ()
    """Of those that have failed."""
    leaves: Collection[int] = ()
    """Keys that go on without one that is dead."""
    marks: Sequence[Mark] = ()
    """How far a source was read with this."""
    inside: Collection[int] = ()
    """In a transaction of the caller's: the messages that leave the queue, done or to be queued anew."""
    effects: Mapping[int, int] = field(default_factory=dict)
    """The number that a message had in a transaction that was undone, and the one that it has now: its external calls
    stay its own."""


class Requeue(NamedTuple):
    """A message whose handler has committed on its own, so that it is received, and in no queue."""

    row: NewRow
    seq: int
    """The number that it has, if so."""
    state: Literal["ready", "retry", "dead"] = "ready"
    after: int | None = None
    attempt: AttemptRow | None = None


class StoreClaimed(NamedTuple):
    """Store a message that is to be run at once, claimed already; with a key only where it is its turn."""

    row: NewRow
    catalog: int
    worker: int
    token: int
    isolation: int = 0
    keyless: bool = False
    after_crash: bool = False
    """A process that works inline has died: order needs the rules of a claim, so with a key it is only queued."""


class Placed(NamedTuple):
    """What became of it."""

    claimed: bool
    stored: Stored | None
    """None where it was known, or the catalog has changed."""


class InlineMoves(Protocol):
    """What a process does that handles messages as they come."""

    def begin_direct(self, begin: BeginDirect, /) -> Flow[Begun]:
        """Receive messages in the transaction that is to handle them, which is open when some of them are new.

        A copy that comes meanwhile waits for this transaction.
        """

    def finish_direct(self, finish: FinishDirect, /) -> Flow[None]:
        """Commit it all, or raise and nothing of it has happened; `GuardFailed` where it is another transaction."""

    def requeue_own(self, messages: Sequence[Requeue], /) -> Flow[dict[int, int]]:
        """Queue messages that were committed without "done"; returns their numbers by ordinal."""

    def store_claimed(self, claimed: StoreClaimed, /) -> Flow[Placed]:
        """Store it as if it were claimed."""
