"""Reports: what operators ask about an inbox. They change nothing.

A protocol of its own: a store may lack it, and declares that. The cost of every report has an end that the size of the
history does not move. Times are of the store's clock. What is stored as text (headers, results, cursors) is returned as
that: the read side (`admin/`) decodes it, and fetches what is kept elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol

from onceward.domain.circuits import OpenCircuit, heard
from onceward.flow import Flow
from onceward.stores.moves.messages import Ahead, Listing, Row, StoredEffect, StoredMessage
from onceward.stores.moves.operations import Case


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of messages by status, and of workers."""

    due: int
    waiting: int
    running: int
    retrying: int
    scheduled: int
    dead: int
    unhandled: int
    quarantined: int
    done: int
    discarded: int
    skipped: int
    duplicates: int
    failures: int
    workers: int
    oldest_due_seconds: float
    done_last_minute: int
    outbox_unsent: int
    outbox_dead: int
    outbox_sent: int
    polls_failing: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process that runs or ran handlers."""

    id: int
    process: str
    host: str
    pid: int
    code_version: str
    inline: bool
    started_at: datetime
    lease_seconds: float
    holds: int
    lanes: int = 0
    """How many worker threads it has; none where it handles messages for its callers alone."""
    handles: str = ""
    """What it has handlers for: lines of consumer, type and version."""
    circuits: str = ""
    """Which circuits were open at its last heartbeat: lines of consumer, type and seconds."""

    @property
    def open_circuits(self) -> tuple[OpenCircuit, ...]:
        """The handlers, and destinations, that it does not call for now."""
        return heard(self.circuits)


@dataclass(frozen=True, slots=True)
class Running:
    """A message that a worker has in hand."""

    seq: int
    worker: int
    type: str
    key: str | None
    consumer: str
    outgoing: bool
    attempt: int


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead messages of a type whose last attempt failed in the same way."""

    fingerprint: str
    type: str
    consumer: str
    outgoing: bool
    messages: int
    first_seq: int
    last_seq: int
    first_at: datetime
    last_at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A message that holds its key and will not run by itself, and what waits behind it."""

    seq: int
    type: str
    key: str | None
    consumer: str
    outgoing: bool
    received_at: datetime
    behind: int
    next_seq: int | None
    state: Literal["dead", "unhandled"] = "dead"
    """Unhandled: no program handles its type, and it was given a key."""


class Halted(NamedTuple):
    """What operators have paused, short of everything."""

    subscriptions: frozenset[int] = frozenset()
    destinations: frozenset[str] = frozenset()

    def has(self, subscription: int | None, destination: str | None) -> bool:
        """Whether a message waits because of it."""
        return subscription in self.subscriptions or destination in self.destinations


@dataclass(frozen=True, slots=True)
class Failing:
    """What keeps failing and is not dead yet."""

    messages: int
    """Messages that have failed so many times."""
    held_keys: int
    """Keys in which others have waited behind a failing message for so long."""


class Unserved(NamedTuple):
    """Due messages of one subscription, and of one destination where they are outgoing."""

    type: str
    consumer: str
    destination: str | None
    messages: int
    oldest_seconds: float
    """How long the oldest has been here."""


class Hit(NamedTuple):
    """A message in which a text was found."""

    seq: int
    place: Literal["error", "payload"]


class Refused(NamedTuple):
    """Messages whose rows the database refuses to give to their consumers."""

    messages: int
    first_seq: int | None


class Keyless(NamedTuple):
    """New messages that came without the key that their handler wants."""

    type: str
    consumer: str
    key_path: str | None
    """Where it should have been; None where a function finds it."""
    messages: int


class Apart(NamedTuple):
    """A handler that has its effects elsewhere than in its transaction."""

    consumer: str
    type: str


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source: how late it may redeliver, and what the newest messages show of it."""

    name: str
    redelivers_for: timedelta | None
    recent: int
    last_at: datetime | None
    duplicates: int


class StoredPoll(NamedTuple):
    """A polled API."""

    source: str
    cursor: str | None
    responses: int
    running: bool
    due_seconds: float
    ended_at: datetime | None
    failures: int
    error: str | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table. What the database does not know cheaply is None."""

    name: str
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Storage:
    """How much is kept, and since when."""

    tables: tuple[TableSize, ...]
    ledger_since: datetime | None
    bodies_since: datetime | None
    maintenance_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Something an operator did to a message, or a number that was skipped."""

    id: int
    at: datetime
    actor: str
    action: str
    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in a minute, so many minutes ago."""

    ago: int
    received: int
    done: int
    failed: int


ONE_BY_ONE = 200
"""So many messages are looked through for a text where each has to be fetched."""


def look_through(reports: ReportMoves, text: str, newest: int, limit: int) -> Flow[list[Hit]]:
    """`search`, for a store that can only show its messages one by one."""
    found: list[Hit] = []
    wanted, most, rows = text.encode(errors="replace"), min(newest, ONE_BY_ONE), []
    for outgoing in (False, True):
        rows += yield from reports.unfinished(Listing(most, outgoing))
        rows += yield from reports.finished(Listing(most, outgoing))
    for row in sorted(rows, key=lambda one: -one.seq)[:most]:
        message = yield from reports.message(row.seq)
        if message is not None and any(text in attempt.error for attempt in message.history):
            found.append(Hit(row.seq, "error"))
        elif message is not None and wanted in (message.body or b""):
            found.append(Hit(row.seq, "payload"))
        if len(found) == limit:
            break
    return found


class ReportMoves(Protocol):
    """What operators see."""

    # Messages

    def unfinished(self, listing: Listing, /) -> Flow[list[Row]]:
        """Unfinished messages, newest first."""

    def finished(self, listing: Listing, /) -> Flow[list[Row]]:
        """Finished messages, newest first; what is no longer kept of one is empty."""

    def message(self, seq: int, /) -> Flow[StoredMessage | None]:
        """Everything about one message; None where there is no such message."""

    def ahead(self, seq: int, /) -> Flow[Ahead | None]:
        """The first unfinished message of a message's key, if that is another one."""

    def find(self, source: str, consumer: str, /, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        """The messages of an id of a source, for every consumer with a subscription, and for this one."""

    def find_anywhere(self, limit: int, /, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        """The messages of an id, from every source and for every consumer."""

    def search(self, text: str, newest: int, limit: int, /) -> Flow[list[Hit]]:
        """The newest messages with a text in an error or a payload, among so many of the newest of each."""

    def quarantined(self, limit: int, /) -> Flow[list[Case]]:
        """Mismatches that wait for a decision, the first first."""

    def effects(self, seq: int | None, limit: int, /) -> Flow[list[StoredEffect]]:
        """The external calls of one message; or all whose outcome is unknown, and whose messages are not running."""

    # The inbox as a whole

    def stats(self) -> Flow[Stats]:
        """Counts by status, and the age of the oldest due message."""

    def workers(self) -> Flow[list[WorkerRow]]:
        """The processes that are registered, the first first."""

    def running(self, limit: int, /) -> Flow[list[Running]]:
        """What the workers have in hand."""

    def dead_groups(self, limit: int, /) -> Flow[list[DeadGroup]]:
        """Dead messages by how they failed, the largest group first."""

    def blocked_keys(self, limit: int, /) -> Flow[list[BlockedKey]]:
        """Keys that a message holds which will not run by itself, those with most behind it first."""

    def failing(self, times: int, held: float, halted: Halted, /) -> Flow[Failing]:
        """What has failed so many times, and what has held a key for so many seconds; without what is halted."""

    def sources(self, newest: int, /) -> Flow[list[SourceRow]]:
        """Who sends, as far as so many of the newest messages show."""

    def polls(self) -> Flow[list[StoredPoll]]:
        """The polled APIs."""

    def storage(self) -> Flow[Storage]:
        """The sizes of tables, and the oldest of what is kept."""

    def pruning_due(self) -> Flow[datetime | None]:
        """When what is old is removed next; None where no process has done that yet."""

    def audit(self, before: int | None, limit: int, /) -> Flow[list[AuditLine]]:
        """What operators did, newest first, before a line of the audit."""

    def traffic(self, minutes: int, newest: int, /) -> Flow[list[Minute]]:
        """The last minutes, the newest last, from so many of the newest rows of each kind; not what goes out."""

    # What can be wrong

    def unserved(self) -> Flow[list[Unserved]]:
        """Due messages by who should take them."""

    def refused(self) -> Flow[Refused]:
        """What cannot be given to its consumers."""

    def unreachable(self) -> Flow[int]:
        """How many messages are in a state out of which no process would ever move them."""

    def keyless(self, newest: int, /) -> Flow[list[Keyless]]:
        """What came without its key, among so many of the newest messages."""

    def apart(self) -> Flow[list[Apart]]:
        """The handlers that were seen to have their effects elsewhere."""

    def debris(self) -> Flow[list[str]]:
        """The commands that remove everything of this inbox, for one that was made to be measured."""
