"""Messages with unfinished business, on a unit of work: where each stands, and what its key makes of it.

A message without a key is one item, whose place says what it waits for. Those of a key are in the partition of their
key, in order, and the key has one item in the queue, its head: who has the head has the key, so a claim is a claim of
the head, and no other worker touches its messages. A message behind the first one waits without being written down as
waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onceward.domain.schedule import LAST_PLACE
from onceward.errors import GuardFailed
from onceward.flow import Flow
from onceward.stores.dynamodb.items import Item, Place, place_of
from onceward.stores.dynamodb.row import Row, row_of, unhandled_item
from onceward.stores.dynamodb.unit import Shared, Unit
from onceward.stores.moves.queue import AttemptRow

RECHECK = 60_000_000
"""A key whose first message will not run by itself is looked at again after so many microseconds."""


def of_id(
    unit: Unit, names: dict[int, str], sources: Sequence[int], from_id: bytes, below_id: bytes
) -> Flow[list[int]]:
    """The messages of an id, of whatever destination."""
    found = []
    for consumer in names:
        for source in sources:
            pk = unit.layout.ledger(consumer, source, from_id).pk
            for item in (yield from unit.query(pk)):
                found += [item["seq"]] if from_id <= item["stored_id"] < below_id else []
    return sorted(found)


class Table(Unit):
    """A unit of work on messages."""

    def __init__(self, base: Shared) -> None:
        super().__init__(base)
        self.rows: dict[int, Row] = {}
        self.origins: dict[int, Place] = {}
        self.gone: set[int] = set()
        self.before: dict[int, int | None] = {}
        """The keys that rows stood in when they were read."""
        self.unplaced: list[Item] | None = None
        """What waits to be fanned out, once it was read."""

    # Finding

    def row(self, seq: int) -> Flow[Row | None]:
        """An unfinished message."""
        return (yield from self.find([seq])).get(seq)

    def find(self, seqs: Iterable[int]) -> Flow[dict[int, Row]]:
        """Those of these messages that are unfinished."""
        missing = [seq for seq in seqs if seq not in self.rows and seq not in self.gone]
        known = {seq: place for seq in missing if (place := self.base.places.get(seq)) is not None}
        found = yield from self.get(*known.values())
        for item in found:
            if item is not None:
                yield from self.adopt(item)
        missing = [seq for seq in missing if seq not in self.rows]
        places = [place for seq in missing for place in self.everywhere(seq)]
        if places:
            items = yield from self.get(*places)
            keyed = [Place(*item["pending"]) for item in items if item is not None and "pending" in item]
            for item in [*items, *(yield from self.get(*keyed))]:
                if item is not None and "lpk" in item and "done_at" not in item:
                    yield from self.adopt(item)
        return {seq: self.rows[seq] for seq in seqs if seq in self.rows}

    def everywhere(self, seq: int) -> tuple[Place, ...]:
        """Where a message may be."""
        layout = self.layout
        return layout.ready(seq), layout.timed(seq), layout.parked(seq), layout.done(seq)

    def adopt(self, item: Item) -> Flow[Row]:
        """An item of a message that was read, as a row."""
        if item["seq"] in self.rows:
            return self.rows[item["seq"]]
        row = row_of(item)
        if row.stands_in is not None:
            head = yield from self.head(row.stands_in)
            if row.seq in head.get("seqs", ()):
                row.worker, row.token = head["worker"], head["token"]
        self.rows[row.seq], self.origins[row.seq] = row, place_of(item)
        self.before[row.seq] = row.stands_in
        return row

    def head(self, key_hash: int) -> Flow[Item]:
        """The head of a key; empty where there is none."""
        (found,) = yield from self.get(self.layout.head(key_hash))
        return found or {}

    def of_key(self, key_hash: int, limit: int | None = None) -> Flow[list[Row]]:
        """The unfinished messages of a key, in order, as they are to be."""
        items = yield from self.query(self.layout.at("K", key_hash).pk, limit=limit)
        for item in items:
            yield from self.adopt(item)
        return sorted((row for row in self.rows.values() if row.stands_in == key_hash), key=lambda row: row.order)

    def is_first(self, row: Row) -> Flow[bool]:
        """Whether nothing unfinished comes before a message that is numbered within its key."""
        if row.sequence is None or row.key_hash is None:
            return True
        rows = yield from self.of_key(row.key_hash)
        return not any(one.order < row.order and one.key == row.key for one in rows)

    def claimed(self, seq: int, worker: int, token: int) -> Flow[Row]:
        """The guard of every finish: the row still carries the claim."""
        row = yield from self.row(seq)
        if row is None or not row.carries(worker, token):
            raise GuardFailed(f"message {seq} is not claimed by worker {worker} any more")
        return row

    # Changing

    def add(self, row: Row) -> None:
        """A row that is new."""
        self.rows[row.seq] = row

    def take_out(self, row: Row) -> None:
        """It has no unfinished business any more."""
        self.gone.add(row.seq)
        del self.rows[row.seq]

    def say(self, action: str, seq: int, actor: str, reason: str) -> None:
        """Add a line to the audit."""
        number = self.base.numbers.moment()
        line = {"number": number, "at": self.now, "actor": actor, "action": action, "seq": seq, "reason": reason}
        self.set(self.layout.at("A", sk=f"{number:019d}"), line)
        self.set(self.layout.about(seq, "o", number), line)

    def add_attempt(self, row: Row, attempt: AttemptRow) -> None:
        """Add a failed attempt to the history of its message."""
        number = self.base.numbers.moment()
        self.set(self.layout.about(row.seq, "a", f"{number:019d}"), {**attempt, "at": self.now})
        self.set(self.layout.at("F", sk=f"{number:019d}"), {"charged": attempt["charged"], "at": self.now})
        row.fingerprint, row.error, row.failed_at = attempt["fingerprint"], attempt["error"][:500], self.now

    def is_done(self, row: Row, *, how: str = "done", **about: Any) -> None:
        """Remember what has become of a message."""
        kept = {"seq": row.seq, "lpk": row.lpk, "lsk": row.lsk, "how": how, "done_at": self.now}
        self.set(self.layout.done(row.seq), {**kept, "outgoing": row.outgoing or None, **about})

    # Numbers within a key

    def progress(self, consumer: int, aggregate: str | None, key: str | None) -> Place:
        """How far a key has come."""
        return self.layout.at("N", consumer, aggregate or "", sk=key or "-")

    def applied(self, consumer: int, aggregate: str | None, key: str | None) -> Flow[int]:
        """The highest number of a key that is applied."""
        (item,) = yield from self.get(self.progress(consumer, aggregate, key))
        return 0 if item is None else int(item["applied"])

    def advance(self, rows: Iterable[Row]) -> Flow[None]:
        """The keys of these messages have come to their numbers."""
        for row in rows:
            if row.key is not None and row.sequence is not None:
                yield from self.advance_to(row.consumer, row.aggregate, row.key, row.sequence)

    def advance_to(self, consumer: int, aggregate: str | None, key: str | None, sequence: int) -> Flow[None]:
        """A key has come to a number."""
        known = yield from self.applied(consumer, aggregate, key)
        if sequence > known or known == 0:
            self.set(self.progress(consumer, aggregate, key), {"applied": max(known, sequence)})

    def leave_key(self, seq: int) -> Flow[bool]:
        """Let a key go on without its dead message; False where it is not dead, holds none, or is not first."""
        row = yield from self.row(seq)
        if row is None or row.state != "dead" or row.key_hash is None or not (yield from self.is_first(row)):
            return False
        yield from self.advance([row])
        row.change(key_hash=None)
        return True

    # The end

    def home(self, row: Row) -> Place:
        """Where a row is to be."""
        if row.stands_in is not None:
            return self.layout.in_key(row.stands_in, row.place, row.seq)
        if row.state == "ready":
            return self.layout.ready(row.seq)
        return self.layout.timed(row.seq) if row.due_at is not None else self.layout.parked(row.seq)

    def save(self) -> Flow[None]:
        """Put the rows where they belong, and give their keys back their heads."""
        keys: set[int | None] = set()
        for seq in self.gone & self.origins.keys():
            self.remove(self.origins[seq])
            self._unmark(seq)
            keys.add(self.before[seq])
        for seq, row in self.rows.items():
            if row.key_hash is not None and row.place == LAST_PLACE and row.state in ("ready", "retry"):
                row.number = row.place = yield from self.enters(row.key_hash)  # behind all that came before
            keys |= {self.before.get(seq), row.stands_in}
            is_there = row.number if seq not in self.origins else self.before[seq] == row.stands_in
            if row.stands_in is not None and not is_there:
                row.number = yield from self.enters(row.stands_in)
            self._put_home(row)
        for key_hash in sorted(keys - {None}):  # type: ignore[type-var] # without None
            yield from self._save_head(key_hash)  # type: ignore[arg-type] # without None

    def enters(self, key_hash: int) -> Flow[int]:
        """A message comes to a key within this unit: the number that it has there."""
        place, head = self.layout.head(key_hash), (yield from self.head(key_hash))
        number = max(int(head.get("n", 0)) + 1, self.now)
        if self.seen[place] is not None:
            self.counted.add(place)
        left = {name: one for name, one in head.items() if name != "due_at"}
        self.set(place, {**left, "key_hash": key_hash, "n": number})
        return number

    def _put_home(self, row: Row) -> None:
        """Where it belongs, as it is now."""
        origin, home, item = self.origins.get(row.seq), self.home(row), row.item()
        was = {} if origin is None else self.seen.get(origin) or {}
        if origin is not None and origin != home:
            self.remove(origin)
        if origin != home:
            self.seen.setdefault(home, None)
        if origin == home and all(was.get(name) == item.get(name) for name in {*was, *item} - KEYS):
            return
        self.set(home, item)
        if row.stands_in is not None and origin != home:
            self.set(self.layout.done(row.seq), {"pending": list(home)})
        elif row.stands_in is None and self.before.get(row.seq) is not None:
            self.remove(self.layout.done(row.seq))
        if row.state == "unhandled":
            self.set(self.layout.unhandled(row.seq), unhandled_item(row))
        else:
            self._unmark(row.seq)

    def _unmark(self, seq: int) -> None:
        """It does not wait for its consumer any more."""
        was = self.seen.get(self.origins[seq]) if seq in self.origins else None
        if was is not None and was["state"] == "unhandled":
            self.remove(self.layout.unhandled(seq))

    def _save_head(self, key_hash: int) -> Flow[None]:
        place, head = self.layout.head(key_hash), (yield from self.head(key_hash))
        own = {seq for seq, before in self.before.items() if before == key_hash}
        claimed = [row for row in self.rows.values() if row.stands_in == key_hash and row.token is not None]
        seqs = sorted({*head.get("seqs", ()), *(row.seq for row in claimed)} - (own - {row.seq for row in claimed}))
        left = {name: one for name, one in head.items() if name not in CLAIM}
        if seqs:
            whose = {"worker": claimed[0].worker, "token": claimed[0].token} if claimed else head
            left.update(seqs=seqs, worker=whose["worker"], token=whose["token"])
            left = {name: one for name, one in left.items() if name not in HOLD}
        elif (yield from self._is_empty(key_hash, head)):
            if head:
                self.counted.add(place)
                self.remove(place)
            return
        self.set(place, {"key_hash": key_hash, "n": self.now, **left})

    def _is_empty(self, key_hash: int, head: Item) -> Flow[bool]:
        """Whether no message of a key is left, and none is on its way."""
        if any(row.stands_in == key_hash for row in self.rows.values()):
            return False
        taken = [seq for seq, before in self.before.items() if before == key_hash]
        numbers = [int((self.seen.get(self.origins[seq]) or {}).get("number", 0)) for seq in taken]
        if head and max(numbers, default=0) != head["n"]:
            return False  # one is on its way
        return not (yield from self.query(self.layout.at("K", key_hash).pk, limit=len(taken) + 1))


KEYS = {"pk", "sk", "stamp"}
CLAIM = {"seqs", "worker", "token", "due_at"}
HOLD = ("fence", "until")
"""What the head of a key has while its message is processed inline, and loses to a claim that comes when it is over."""
