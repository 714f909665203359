"""What a memory store keeps: dictionaries of rows that never change, and the few operations that all moves share.

Invariant: a change works on a copy of the dictionaries, which takes their place as a whole when it has succeeded. So a
move that raises has changed nothing, whatever it had done before; and no reader ever sees half of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from onceward.domain import identity
from onceward.domain.marks import Mark
from onceward.domain.pauses import PauseRow
from onceward.domain.schedule import LAST_PLACE
from onceward.registry import Subscription
from onceward.stores.moves.history import HistoryRow
from onceward.stores.moves.ledger import Mismatch, NewRow, Stored
from onceward.stores.moves.membership import NewWorker
from onceward.stores.moves.polls import PollState
from onceward.stores.moves.queue import AttemptRow

Identity = tuple[int, int, bytes]
"""Consumer, source and id, as they are stored: the key of the ledger."""
Keys = tuple[int, str, str]
"""Consumer, namespace and key: what has numbers."""


class LedgerRow(NamedTuple):
    """A message that was ever accepted."""

    consumer: int
    source: int
    stored_id: bytes
    hash: bytes
    type_hash: int
    received_at: int

    @property
    def identity(self) -> Identity:
        """What makes it this message and no other."""
        return self.consumer, self.source, self.stored_id


class QueueRow(NamedTuple):
    """A message with unfinished business. A row without a token is claimed by no worker."""

    seq: int
    subscription: int | None
    key_hash: int | None
    place: int
    sequence: int | None
    outgoing: bool
    destination: str | None
    state: str
    due_at: int | None = None
    worker: int | None = None
    token: int | None = None
    attempts: int = 0
    crashes: int = 0
    postponed: int = 0
    isolation: int = 0
    type: str | None = None
    """Of a message that waits to be fanned out."""

    @property
    def order(self) -> tuple[int, int]:
        """Where it stands in its key."""
        return self.place, self.seq

    def carries(self, worker: int, token: int) -> bool:
        """Whether it is in this claim."""
        return (self.worker, self.token) == (worker, token)

    def unclaimed(self, **changes: Any) -> QueueRow:
        """The same without its claim."""
        return self._replace(worker=None, token=None, **changes)

    def status(self, now: int) -> str:
        """As people see it."""
        if self.token is not None:
            return "running"
        if self.state == "ready" or (self.state in ("retry", "scheduled") and (self.due_at or 0) <= now):
            return "due"
        return "retrying" if self.state == "retry" else self.state


class RunRow(NamedTuple):
    """A committed transaction of handled messages."""

    worker: int
    code_version: str
    finished_at: int
    seqs: Sequence[int]
    outgoing: bool


class WorkerState(NamedTuple):
    """A registered process, and until when it counts as alive."""

    new: NewWorker
    started_at: int
    alive_until: int
    inline: bool
    circuits: str = ""


class AttemptState(NamedTuple):
    """A failed attempt, and when that was."""

    row: AttemptRow
    at: int


class CaseState(NamedTuple):
    """A mismatch, and what was decided about it."""

    mismatch: Mismatch
    copies: int
    first_at: int
    last_at: int
    resolution: str | None = None
    accepted: int | None = None


class AuditState(NamedTuple):
    """A line of the audit."""

    at: int
    actor: str
    action: str
    seq: int
    reason: str


class EffectState(NamedTuple):
    """An external call."""

    seq: int
    name: str
    worker: int
    started_at: int
    done: bool = False
    result: str | None = None
    finished_at: int | None = None


class CopiesState(NamedTuple):
    """The copies of a message."""

    copies: int
    first_at: int
    last_at: int


class PollRow(NamedTuple):
    """A polled API."""

    state: PollState
    due_at: int
    token: str | None = None
    ended_at: int | None = None
    error: str | None = None


@dataclass(slots=True)
class Tables:
    """Everything that is kept."""

    version: int = field(default_factory=identity.new_number)
    """Of the catalog."""
    crashed_at: int | None = None
    numbers: int = 0
    """The last number that was given; none is given twice."""
    folder: str = field(default_factory=identity.new_id)
    names: dict[str, int] = field(default_factory=dict)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    apart: dict[tuple[str, str], bool] = field(default_factory=dict)
    windows: dict[str, float] = field(default_factory=dict)
    pauses: tuple[PauseRow, ...] = ()
    ledger: dict[int, LedgerRow] = field(default_factory=dict)
    ids: dict[Identity, int] = field(default_factory=dict)
    queue: dict[int, QueueRow] = field(default_factory=dict)
    bodies: dict[int, NewRow] = field(default_factory=dict)
    runs: dict[int, RunRow] = field(default_factory=dict)
    results: dict[int, str] = field(default_factory=dict)
    attempts: dict[int, AttemptState] = field(default_factory=dict)
    copies: dict[int, CopiesState] = field(default_factory=dict)
    cases: dict[int, CaseState] = field(default_factory=dict)
    audit: dict[int, AuditState] = field(default_factory=dict)
    workers: dict[int, WorkerState] = field(default_factory=dict)
    progress: dict[Keys, int] = field(default_factory=dict)
    effects: dict[str, EffectState] = field(default_factory=dict)
    first_seen: dict[tuple[int, bytes], tuple[str, int]] = field(default_factory=dict)
    polls: dict[int, PollRow] = field(default_factory=dict)
    positions: dict[tuple[str, str], str] = field(default_factory=dict)
    """How far sources were read, by source and part."""
    turns: dict[str, int] = field(default_factory=dict)
    history: dict[int, HistoryRow] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    user: dict[tuple[str, Any], Mapping[str, Any]] = field(default_factory=dict)
    """What handlers have written."""
    now: int = 0
    """When the change is made, in microseconds."""

    def copied(self, now: int) -> Tables:
        """The same, to be changed."""
        changed = copy(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, dict):
                setattr(changed, one.name, dict(value))
        changed.now = now
        return changed

    def after(self, seconds: float | None) -> int | None:
        """When so many seconds are over."""
        return None if seconds is None else self.now + int(seconds * 1_000_000)

    def since(self, moment: int) -> float:
        """How many seconds ago a moment was."""
        return (self.now - moment) / 1_000_000

    def number(self) -> int:
        """A new number, higher than all before."""
        self.numbers += 1
        return self.numbers

    def touch(self) -> None:
        """Tell receivers to read the catalog again."""
        self.version = identity.new_number()

    def say(self, action: str, seq: int, actor: str, reason: str) -> None:
        """Add a line to the audit."""
        self.audit[self.number()] = AuditState(self.now, actor, action, seq, reason)

    def keep(self, marks: Iterable[Mark]) -> None:
        """Sources were read so far, where they were before as their readers believe."""
        for mark in marks:
            if self.positions.get((mark.source, mark.part)) == mark.since:
                self.positions[mark.source, mark.part] = mark.position

    def name(self, number: int) -> str:
        """The name behind a number."""
        return next(name for name, known in self.names.items() if known == number)

    # Messages come, and leave their keys

    def store(self, row: NewRow, catalog: int | None = None, **queued: Any) -> Stored | None:
        """Store a message that is not known: ledger, body and queue. None where it is, or the catalog has changed."""
        stored = self.accept(row, catalog)
        if stored is not None:
            destination = (row["destination"] or "default") if queued.get("outgoing") else None
            due = self.due(row)
            state = "unhandled" if row["unplaced"] is not None else "ready" if due is None else "scheduled"
            place = stored.seq if row["place"] is None else row["place"]
            where = (row["subscription"], row["key_hash"], place, row["sequence"])
            when = {"state": state, "due_at": due if state == "scheduled" else None}
            given = {"outgoing": False, **when, **queued, "destination": destination, "type": row["unplaced"]}
            self.queue[stored.seq] = QueueRow(stored.seq, *where, **given)
        return stored

    def accept(self, row: NewRow, catalog: int | None = None, seq: int | None = None) -> Stored | None:
        """The same without the queue: for a message that is handled in the very change that stores it."""
        who = row["consumer"], row["source"], row["stored_id"]
        if who in self.ids or catalog not in (None, self.version):
            return None
        seq = self.number() if seq is None else seq
        self.ids[who] = seq
        self.ledger[seq] = LedgerRow(*who, row["hash"], row["type_hash"], self.now)
        self.bodies[seq] = {**row, "due_at": self.due(row), "due_in": None}
        return Stored(seq, self.now)

    def due(self, row: NewRow | Mismatch) -> int | None:
        """When a message is due that is not to run at once."""
        return row["due_at"] if row["due_in"] is None else self.now + row["due_in"]

    def since_due(self, seq: int) -> int:
        """When a message came, or was to run."""
        body, came = self.bodies.get(seq), self.ledger[seq].received_at
        return (body and body["due_at"]) or came

    def of_key(self, key_hash: int) -> list[QueueRow]:
        """The unfinished messages of a key, in order."""
        return sorted((row for row in self.queue.values() if row.key_hash == key_hash), key=lambda row: row.order)

    def in_key(self, key_hash: int) -> list[QueueRow]:
        """The same without what is scheduled, which holds no other before it is due."""
        return [row for row in self.of_key(key_hash) if row.place != LAST_PLACE]

    def is_first(self, row: QueueRow) -> bool:
        """Whether nothing unfinished comes before a message that is numbered within its key."""
        if row.sequence is None or row.key_hash is None:
            return True
        key = self.bodies[row.seq]["key"]
        earlier = (one for one in self.of_key(row.key_hash) if one.order < row.order)
        return not any(self.bodies[one.seq]["key"] == key for one in earlier)

    def promote(self, keys: Iterable[int | None]) -> set[int]:
        """After a removal: the first of each key that waits goes on; the subscriptions of those that do."""
        promoted = set[int]()
        for key in {key for key in keys if key is not None}:
            first = next((row for row in self.of_key(key) if row.state == "waiting"), None)
            if first is not None:
                self.queue[first.seq] = first._replace(state="ready", due_at=None)
                promoted |= set() if first.subscription is None else {first.subscription}
        return promoted

    def leave_key(self, seq: int) -> bool:
        """Let a key go on without its dead message; False where it is not dead, holds none, or is not first."""
        row = self.queue.get(seq)
        if row is None or row.state != "dead" or row.key_hash is None or not self.is_first(row):
            return False
        self.advance([seq])
        self.queue[seq] = row._replace(key_hash=None)
        self.promote([row.key_hash])
        return True

    def keys_of(self, seq: int) -> Keys | None:
        """The key whose numbers a message counts in."""
        body = self.bodies[seq]
        return None if body["key"] is None else (body["consumer"], body["aggregate"] or "", body["key"])

    def advance(self, seqs: Iterable[int]) -> None:
        """The keys of these messages have come to their numbers."""
        for seq in seqs:
            keys, sequence = self.keys_of(seq), self.queue[seq].sequence
            if keys is not None and sequence is not None:
                self.progress[keys] = max(self.progress.get(keys, 0), sequence)

    def last_attempt(self, seq: int) -> AttemptState | None:
        """The newest failed attempt of a message."""
        return next((one for one in reversed(self.attempts.values()) if one.row["seq"] == seq), None)

    def run_of(self, seq: int) -> RunRow | None:
        """The transaction that has finished a message."""
        return next((run for run in self.runs.values() if seq in run.seqs), None)

    def is_discarded(self, seq: int) -> bool:
        """Whether an operator took it out."""
        return any((line.seq, line.action) == (seq, "discard") for line in self.audit.values())

    def is_finished(self, seq: int) -> bool:
        """Whether its effects are committed."""
        return seq in self.ledger and seq not in self.queue and not self.is_discarded(seq)
