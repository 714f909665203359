"""What happened, as data: the checker reads nothing else, so a corrupted history can be written by hand.

Invariant: records are only appended, in the order in which things happened; `step` is the scheduler's counter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass(slots=True)
class Reception:
    """One delivery handed to `receive` or `process`, and what was answered."""

    source: str
    id: str
    hash: bytes
    type: str
    key: str | None
    began: int
    ended: int = -1
    status: str = ""
    """Receipt status; empty when the call failed or its process died."""
    inline: bool = False
    undone: bool = False
    """The database has failed over while it was under way: its answer says nothing."""
    unsigned: bool = False
    """Its source does not sign ids."""
    committed: int = -1
    """When the transaction it joined was committed; -1 where it had its own."""


@dataclass(slots=True)
class Run:
    """One call of a handler for one message."""

    step: int
    seq: int
    consumer: str
    source: str
    id: str
    key: str | None
    number: int | None
    body_hash: bytes
    attempt: int
    single: bool
    """It was the only message of its call."""
    process: str
    worker: int
    outcome: str = ""
    """ok, raise, retry, reject, timeout, infra, effect, died; empty while it runs."""
    ended: int = -1


@dataclass(slots=True)
class Publication:
    """One message handed to a sink."""

    step: int
    source: str
    id: str
    destination: str
    key: str | None
    committed: bool
    """Whether its outgoing row was committed when it was published."""
    at: int = 0
    """Microseconds on the clock of the database."""
    sink: str = ""
    """Where it was published to."""


@dataclass(slots=True)
class ExternalCall:
    """One call made under `message.once`."""

    step: int
    key: str
    intended: bool
    """Whether its intent was committed when it was made."""
    idempotent: bool
    refused: bool = False
    """The call said that it did not happen."""
    held: bool = True
    """Whoever made it still had its message in hand; else it is a zombie that does not know yet."""


@dataclass(slots=True)
class Action:
    """Something a person did."""

    step: int
    name: str
    seq: int
    answer: str
    """done, nothing, unknown."""
    retried: bool = False
    """A first try failed, so its commit may have happened unanswered."""
    effect: str = ""
    """The key of the external call it was about."""


@dataclass(slots=True)
class Answer:
    """What a client was answered under its key."""

    step: int
    service: str
    id: str
    of: str
    """Whose endpoint has made the answer."""


@dataclass(slots=True)
class Sent:
    """A message that a program sent by itself; the call has returned."""

    step: int
    service: str
    id: str
    destination: str
    hash: bytes


@dataclass(slots=True)
class Holders:
    """Who held claims after a commit that claimed: (key hash, worker, token) of each claimed row."""

    step: int
    claims: list[tuple[int | None, int, int, int]]
    at: int = 0
    """When that was, by the clock of the database."""


@dataclass(slots=True)
class Removal:
    """What retention deleted, and what was committed about it a moment before; it may have been rolled back."""

    statement: str
    numbers: set[int]
    at: int
    """Microseconds on the clock of the database."""
    tables: dict[str, list[Row]]


@dataclass(slots=True)
class History:
    """Everything the checker needs to know."""

    mode: str
    store: str = "sqlite"
    receptions: list[Reception] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    calls: list[ExternalCall] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    holders: list[Holders] = field(default_factory=list)
    acknowledged: list[tuple[str, str, bytes]] = field(default_factory=list)
    """(source, id, hash) of every delivery that was acknowledged to the broker."""
    spooled: set[tuple[str, str, bytes]] = field(default_factory=set)
    """(source, id, hash) of those that wait in the spool at the end."""
    unsettled: list[str] = field(default_factory=list)
    """Deliveries that the broker still waits for at the end."""
    doubly_settled: list[str] = field(default_factory=list)
    misdeeds: list[tuple[str, str]] = field(default_factory=list)
    """(kind, text) of writes that succeeded against what was committed at that moment."""
    departed: list[int] = field(default_factory=list)
    """Workers that deregistered or were taken over, in a committed transaction."""
    answering: set[str] = field(default_factory=set)
    """Types whose handler always returns a result."""
    surprises: list[str] = field(default_factory=list)
    """Exceptions that escaped from a step although nothing explains them."""
    tables: dict[str, list[Row]] = field(default_factory=dict)
    budgets: dict[tuple[str, str], int] = field(default_factory=dict)
    """Attempts allowed for (consumer, type)."""
    crash_limit: int = 3
    consumers: dict[str, list[str]] = field(default_factory=dict)
    """Who must get the messages of a type from the beginning."""
    subscribed: dict[tuple[str, str], int] = field(default_factory=dict)
    """(consumer, type): when its subscription was committed."""
    placed: list[tuple[int, int]] = field(default_factory=list)
    """(step, seq) of every message of an unknown type that got its consumers, and was committed."""
    continuing: set[tuple[str, str]] = field(default_factory=set)
    """(consumer, type) whose keys go on without a dead message."""
    drained: bool = True
    clock_jumped: bool = False
    steps: int = 0
    digest: int = 0
    removals: list[Removal] = field(default_factory=list)
    archived: set[int] = field(default_factory=set)
    """Messages that are in an archive."""
    archive_first: bool = False
    """Bodies may only go when they are there."""
    dedupe_retention: float = 0.0
    """Seconds for which ids are remembered."""
    prompt: set[str] = field(default_factory=set)
    """Destinations that take every message at once, whatever becomes of the others."""
    deaths: dict[int, int] = field(default_factory=dict)
    """When the process of a worker died, in microseconds."""
    ended_at: int = 0
    """When the faults stopped, in microseconds."""
    taken_back: list[Publication] = field(default_factory=list)
    """Publications that a failover has undone in the database, of messages that are still there: they happened."""
    lost: set[str] = field(default_factory=set)
    """Outgoing messages that a failover took back; whoever has one in hand may still publish it."""
    sends: dict[str, int] = field(default_factory=dict)
    """How many messages the handler of a type sends."""
