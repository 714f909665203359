"""A message with unfinished business: its row, how it is kept, and the row of a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onceward.domain.schedule import LAST_PLACE
from onceward.stores.dynamodb.items import Item, Place
from onceward.stores.dynamodb.unit import Unit
from onceward.stores.moves.ledger import Mismatch, NewRow

NOT_KEPT = {"seq", "worker", "token"}


@dataclass(slots=True)
class Row:
    """A message with unfinished business. A row without a token is claimed by no worker."""

    seq: int
    lpk: str
    lsk: str
    """Where its ledger item is."""
    consumer: int
    source: int
    type: str
    received_at: int
    place: int
    state: str
    subscription: int | None = None
    key_hash: int | None = None
    key: str | None = None
    aggregate: str | None = None
    sequence: int | None = None
    number: int = 0
    """Which one of its key it is, as they came."""
    outgoing: bool = False
    destination: str | None = None
    due_at: int | None = None
    worker: int | None = None
    token: int | None = None
    attempts: int = 0
    crashes: int = 0
    postponed: int = 0
    isolation: int = 0
    fingerprint: str | None = None
    """How its last attempt failed,"""
    error: str | None = None
    failed_at: int | None = None
    scheduled_at: int | None = None
    """When it was to run, where that was not at once."""

    @property
    def stands_in(self) -> int | None:
        """The key in which it stands: what is scheduled comes to its key when it is due."""
        return None if self.place == LAST_PLACE else self.key_hash

    @property
    def since(self) -> int:
        """When it came, or was to run."""
        return self.scheduled_at or self.received_at

    @property
    def order(self) -> tuple[int, int]:
        """Where it stands in its key."""
        return self.place, self.seq

    @property
    def ledger(self) -> Place:
        """Where its ledger item is."""
        return Place(self.lpk, self.lsk)

    def carries(self, worker: int, token: int) -> bool:
        """Whether it is in this claim."""
        return (self.worker, self.token) == (worker, token)

    def unclaim(self, **changes: Any) -> None:
        """Take its claim off."""
        self.change(worker=None, token=None, **changes)

    def change(self, **changes: Any) -> None:
        """Change it."""
        for name, value in changes.items():
            setattr(self, name, value)

    def may_run(self, now: int) -> bool:
        """Whether its time has come."""
        return self.state == "ready" or (self.due_at is not None and self.due_at <= now)

    def status(self, now: int, *, is_first: bool) -> str:
        """As people see it."""
        if self.token is not None:
            return "running"
        if self.state == "ready":
            return "due" if is_first else "waiting"
        if self.state in ("retry", "scheduled") and (self.due_at or 0) <= now and is_first:
            return "due"
        return "retrying" if self.state == "retry" else self.state

    def item(self) -> Item:
        """As it is kept."""
        kept = {name: value for name, value in asdict(self).items() if name not in NOT_KEPT and value not in (None, 0)}
        if self.stands_in is None and self.token is not None:
            kept.update(worker=self.worker, token=self.token)
        return {**kept, "place": self.place, "consumer": self.consumer, "source": self.source, "seq": self.seq}


def row_of(item: Mapping[str, Any]) -> Row:
    """A row that was read."""
    return Row(**{name: value for name, value in item.items() if name not in ("pk", "sk", "stamp")})


def unhandled_item(row: Row) -> Item:
    """What is known of a message that waits to be fanned out."""
    return {
        "seq": row.seq,
        "type": row.type,
        "subscription": row.subscription,
        "consumer": row.consumer,
        "since": row.seq if row.sequence is None else row.sequence,
        "postponed": row.postponed or None,
    }


def new_row(table: Unit, row: NewRow, seq: int, number: int | None, **queued: Any) -> Row:
    """The row of a new message; `number` is which one of its key it is."""
    place = row["place"] if row["place"] is not None else (number if number is not None else seq)
    outgoing = bool(queued.pop("outgoing", False))
    ledger = table.layout.ledger(row["consumer"], row["source"], row["stored_id"])
    due = due_of(row, table.now)
    state = "unhandled" if row["unplaced"] is not None else "ready" if due is None else "scheduled"
    made = Row(
        seq=seq,
        lpk=ledger.pk,
        lsk=ledger.sk,
        consumer=row["consumer"],
        source=row["source"],
        type=row["type"],
        received_at=table.now,
        place=place,
        state=state,
        due_at=due if state == "scheduled" else None,
        scheduled_at=due,
        subscription=row["subscription"],
        key_hash=row["key_hash"],
        key=row["key"],
        aggregate=row["aggregate"],
        sequence=row["sequence"],
        number=number or 0,
        outgoing=outgoing,
        destination=(row["destination"] or "default") if outgoing else None,
    )
    made.change(**queued)
    return made


def due_of(row: NewRow | Mismatch, now: int) -> int | None:
    """When a message is due that is not to run at once."""
    return row["due_at"] if row["due_in"] is None else now + row["due_in"]


def ledger_item(row: NewRow, seq: int, now: int) -> Item:
    """What is kept of a message."""
    names = ("consumer", "source", "stored_id", "hash", "type_hash", "id", "type", "version", "key", "key_from")
    more = ("aggregate", "position", "headers", "body", "destination", "cause")
    return {"seq": seq, "at": now, "due_at": due_of(row, now), **{name: row[name] for name in (*names, *more)}}  # type: ignore[literal-required] # its keys
