"""Receiving: a message is one item in the ledger, put there only if there is none, and one in the queue, together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from onceward.domain import identity
from onceward.domain.marks import Mark
from onceward.domain.reference import split
from onceward.domain.schedule import LAST_PLACE
from onceward.errors import InvalidMessage
from onceward.flow import Flow
from onceward.stores.dynamodb.cases import known, quarantine
from onceward.stores.dynamodb.catalog import version_of
from onceward.stores.dynamodb.items import Item, Place, encoded, encoded_item, moment_of
from onceward.stores.dynamodb.row import ledger_item, new_row, unhandled_item
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import MOST_WRITES, STAMP, Ask, Cancelled, Pause, Shared, Unit, pauses, repeated
from onceward.stores.moves.ledger import Decided, FirstSeen, ImportedId, Known, Mismatch, NewRow, Stored

LARGEST = 300_000
"""Bodies of more bytes do not fit into an item, with what else is in it."""
MOST_BYTES = 700_000
"""In one transaction, of which DynamoDB takes 4 MB; more than a megabyte at once holds an event loop up."""


class Ledger:
    """What receivers do."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def receive(self, rows: Sequence[NewRow], catalog: int, marks: Sequence[Mark] = ()) -> Flow[dict[int, Stored]]:
        if (yield from version_of(Unit(self._base)))["version"] != catalog:
            return {}
        stored = yield from store(self._base, rows, catalog=catalog)
        yield from self.keep_positions(marks)  # after them: what was read since is read again, and known
        return stored

    def keep_positions(self, marks: Sequence[Mark]) -> Flow[None]:
        def work() -> Flow[None]:
            unit = Unit(self._base)
            yield from keep_marks(unit, marks)
            yield from unit.commit()

        if marks:
            yield from repeated(work)

    def positions(self, source: str) -> Flow[dict[str, str]]:
        found = yield from Unit(self._base).query(self._base.layout.at("O", source).pk)
        return {item["part"]: item["position"] for item in found}

    def send(self, rows: Sequence[NewRow], *, notify: bool) -> Flow[dict[int, Stored]]:  # noqa: ARG002 - the caller notifies
        return (yield from store(self._base, rows, outgoing=True))

    def look_up(self, rows: Sequence[NewRow], unplaced: Collection[str]) -> Flow[dict[int, Known]]:
        table = Table(self._base)
        places = {row["ordinal"]: identity_of(table, row) for row in rows}
        items = dict(zip(places, (yield from table.get(*places.values())), strict=True))
        found: dict[int, Known] = {}
        waiting = None
        for row in rows:
            item = items[row["ordinal"]]
            if item is None and row["type"] in unplaced:
                if waiting is None:
                    waiting = yield from _waiting(table)
                item = waiting.get((row["source"], row["stored_id"], row["type"]))
            if item is not None:
                found[row["ordinal"]] = yield from known(table, item)
        return found

    def import_ids(self, rows: Sequence[ImportedId]) -> Flow[int]:
        new = 0
        for row in rows:
            place = self._base.layout.ledger(row["consumer"], row["source"], row["stored_id"])
            seq = yield from self._base.number()
            unit = Unit(self._base)
            unit.seen[place] = None
            names = ("consumer", "source", "stored_id")
            kept = {name: row[name] for name in names}  # type: ignore[literal-required] # its keys
            about = {"hash": identity.UNKNOWN_HASH, "type_hash": 0, "at": unit.now - row["age"], "seq": seq}
            unit.set(place, {**kept, **about})
            done = {"seq": seq, "lpk": place.pk, "lsk": place.sk, "how": "imported", "done_at": unit.now - row["age"]}
            unit.set(self._base.layout.done(seq), done)
            try:
                yield from unit.commit()
                new += 1
            except Cancelled:  # what is known stays as it is
                continue
        return new

    def count_known(self, rows: Sequence[ImportedId]) -> Flow[int]:
        places = [self._base.layout.ledger(row["consumer"], row["source"], row["stored_id"]) for row in rows]
        return sum(item is not None for item in (yield from Unit(self._base).get(*places)))

    def ages(self, seqs: Sequence[int]) -> Flow[dict[int, float]]:
        yield from ()
        now = self._base.clock()
        return {seq: (now - moment_of(seq)) / 1_000_000 for seq in seqs}

    def count_copies(self, copies: Mapping[int, int]) -> Flow[None]:
        layout, now = self._base.layout, self._base.clock()
        for seq, count in copies.items():
            yield Ask(
                "update_item",
                {
                    "TableName": layout.table,
                    "Key": encoded_item(layout.copies(seq)._asdict()),
                    "UpdateExpression": "SET first_at = if_not_exists(first_at, :now), last_at = :now ADD copies :one",
                    "ExpressionAttributeValues": encoded_item({":now": now, ":one": count}),
                },
            )

    def quarantine(self, mismatch: Mismatch) -> Flow[Decided | None]:
        def work() -> Flow[Decided | None]:
            table = Table(self._base)
            decided = yield from quarantine(table, mismatch)
            yield from table.commit()
            return decided

        return (yield from repeated(work))

    def first_seen(self, bodies: Sequence[FirstSeen]) -> Flow[list[str]]:
        first = []
        for body in bodies:

            def work(body: FirstSeen = body) -> Flow[str]:
                unit = Unit(self._base)
                place = self._base.layout.at("B", body.source, body.hash.hex())
                (known,) = yield from unit.get(place)
                if known is not None and known["at"] >= unit.now - int(body.window * 1_000_000):
                    return str(known["id"])
                expires = unit.now // 1_000_000 + int(body.window) + 60
                unit.set(place, {"id": body.id, "at": unit.now, "expires": expires})
                yield from unit.commit()
                return body.id

            first.append((yield from repeated(work)))
        return first

    def referred(self, blobs: Sequence[str]) -> Flow[set[str]]:
        unit = Unit(self._base)
        places = [self._base.layout.at("R", name) for name in blobs]
        found = yield from unit.get(*places)
        return {name for name, item in zip(blobs, found, strict=True) if item is not None}

    def blob_folder(self) -> Flow[str]:
        return (yield from version_of(Unit(self._base)))["folder"]  # type: ignore[no-any-return] # as stored


def keep_marks(unit: Unit, marks: Sequence[Mark]) -> Flow[None]:
    """Sources were read so far, where they were before as their readers believe."""
    for mark in marks:
        place = unit.layout.at("O", mark.source, sk=mark.part or "-")
        (known,) = yield from unit.get(place)
        if (known or {}).get("position") == mark.since:
            unit.set(place, {"part": mark.part, "position": mark.position})


def store(
    base: Shared, rows: Sequence[NewRow], *, catalog: int | None = None, outgoing: bool = False
) -> Flow[dict[int, Stored]]:
    """Store rows that are not known, in transactions of as many as fit; returns them by ordinal."""
    for row in rows:
        refuse_large(row["id"], row["body"], row["headers"])
    if len(rows) > 1 or any(row["key_hash"] is not None for row in rows):
        unit = Unit(base)
        there = yield from unit.get(*(identity_of(unit, row) for row in rows))
        rows = [row for row, item in zip(rows, there, strict=True) if item is None]
    numbers = yield from counted(base, rows)
    stored: dict[int, Stored] = {}
    for part in _parts(rows):
        stored |= yield from _together(base, part, numbers, catalog, outgoing=outgoing)
    return stored


def _together(
    base: Shared, rows: Sequence[NewRow], numbers: Mapping[int, int], catalog: int | None, *, outgoing: bool
) -> Flow[dict[int, Stored]]:
    """Store those that are not known, in one transaction."""
    for pause in pauses():
        table, stored = Table(base), {}
        for row in rows:
            stored[row["ordinal"]] = yield from accept(table, row, numbers.get(row["ordinal"]), outgoing=outgoing)
        if any(row["subscription"] is None for row in rows) and catalog is not None:
            if (yield from version_of(table))["version"] != catalog:
                return {}
            table.guard(base.layout.version)  # a process that subscribes to its type sees it
        try:
            yield from table.commit()
        except Cancelled:
            unit = Unit(base)
            there = yield from unit.get(*(identity_of(unit, row) for row in rows))
            rows = [row for row, item in zip(rows, there, strict=True) if item is None]
            if not rows:
                return {}
            yield Pause(pause)
        else:
            yield from look_again(base, {row["key_hash"] for row in rows if row["place"] not in (None, LAST_PLACE)})
            return stored
    raise Cancelled


def look_again(base: Shared, keys: Collection[int | None]) -> Flow[None]:
    """Something may have come before what these keys wait for.

    Who has looked before it came, and means to put the key off, finds the stamp changed.
    """
    for key_hash in keys:
        if key_hash is not None:
            asked = {
                "TableName": base.layout.table,
                "Key": encoded_item(base.layout.head(key_hash)._asdict()),
                "UpdateExpression": "REMOVE due_at SET #stamp = :stamp",
                "ConditionExpression": "attribute_exists(pk)",
                "ExpressionAttributeNames": {"#stamp": STAMP},
                "ExpressionAttributeValues": encoded_item({":stamp": identity.new_number()}),
            }
            try:
                yield Ask("update_item", asked)
            except Cancelled:
                continue


def accept(table: Table, row: NewRow, number: int | None, *, outgoing: bool = False, **queued: object) -> Flow[Stored]:
    """Put a message that is not known into the ledger and the queue: two writes, and none for its head."""
    seq = yield from table.base.number()
    enter(table, row, seq)
    made = new_row(table, row, seq, number, outgoing=outgoing, **queued)
    home = table.home(made)
    table.seen.setdefault(home, None)
    table.set(home, made.item())
    if made.stands_in is not None:
        yield from _point(table, seq, home)
    if made.state == "unhandled":
        table.set(table.layout.unhandled(seq), unhandled_item(made))
    return Stored(seq, table.now)


def enter(table: Table, row: NewRow, seq: int) -> None:
    """Put it into the ledger alone."""
    place = identity_of(table, row)
    table.seen[place] = None
    table.set(place, ledger_item(row, seq, table.now))
    if name := blob_of(row["headers"]):
        table.set(table.layout.at("R", name), {"seq": seq})


def _point(table: Table, seq: int, home: Place) -> Flow[None]:
    """Where a message with a key is, by its number: before it is there, so a write of its own is enough."""
    place = table.layout.done(seq)
    item = {**place._asdict(), "pending": list(home)}
    yield Ask("put_item", {"TableName": table.layout.table, "Item": encoded_item(item)})


def counted(base: Shared, rows: Sequence[NewRow]) -> Flow[dict[int, int]]:
    """Give rows with keys the next numbers of their keys, before they are stored; by ordinal.

    That makes the head of the key, or tells it that something comes: until the last number that was given is finished,
    the head stays.
    """
    rows = [row for row in rows if row["key_hash"] is not None and row["place"] != LAST_PLACE]
    wanted = Counter(row["key_hash"] for row in rows)
    last = {}
    for key_hash, count in sorted(wanted.items()):
        last[key_hash] = (yield from count_up(base, key_hash or 0, count)) - count
    numbers = {}
    for row in rows:
        last[row["key_hash"]] += 1
        numbers[row["ordinal"]] = last[row["key_hash"]]
    return numbers


def count_up(base: Shared, key_hash: int, count: int = 1) -> Flow[int]:
    """The last of so many new numbers of a key: the time in microseconds, or the next where the clock is behind."""
    place = base.layout.head(key_hash)
    asked = {"TableName": base.layout.table, "Key": encoded_item(place._asdict()), "ReturnValues": "UPDATED_NEW"}
    now = base.numbers.moment() + count - 1
    try:
        answer = yield Ask(
            "update_item",
            {
                **asked,
                "UpdateExpression": "SET n = :now, key_hash = :key REMOVE due_at",
                "ConditionExpression": "attribute_not_exists(n) OR n < :before",
                "ExpressionAttributeValues": encoded_item({":now": now, ":before": now - count, ":key": key_hash}),
            },
        )
    except Cancelled:
        answer = yield Ask(
            "update_item",
            {
                **asked,
                "UpdateExpression": "SET n = if_not_exists(n, :now) + :count, key_hash = :key REMOVE due_at",
                "ExpressionAttributeValues": {
                    ":now": encoded(now),
                    ":count": encoded(count),
                    ":key": encoded(key_hash),
                },
            },
        )
    return int(answer["Attributes"]["n"]["N"])


def identity_of(unit: Unit, row: NewRow) -> Place:
    """Where the ledger has a row."""
    return unit.layout.ledger(row["consumer"], row["source"], row["stored_id"])


def blob_of(headers: str | None) -> str | None:
    """The blob that a row refers to."""
    reference = split(headers)[1]
    return None if reference is None else reference.name


def refuse_large(message_id: str, body: bytes | None, headers: str | None) -> None:
    """A body that no item can hold."""
    size = len(body or b"") + len((headers or "").encode())
    if size > LARGEST:
        raise InvalidMessage(
            f"message {message_id!r} has {size} bytes, and DynamoDB takes at most {LARGEST} of a body and its headers; "
            "give the inbox a blob store for large bodies: Inbox(..., blobs='s3://bucket/folder')"
        )


def _waiting(table: Table) -> Flow[dict[tuple[int, bytes, str], Item]]:
    """The messages that came before their types had a consumer, whichever service stored them."""
    marks = yield from table.query(table.layout.at("U").pk)
    rows = yield from table.find([mark["seq"] for mark in marks if "subscription" not in mark])
    found: dict[tuple[int, bytes, str], Item] = {}
    for row in rows.values():
        (item,) = yield from table.get(row.ledger)
        if item is not None and row.state == "unhandled":
            found.setdefault((item["source"], item["stored_id"], row.type), item)
    return found


def _parts(rows: Sequence[NewRow]) -> Iterator[list[NewRow]]:
    """As many as fit into a transaction; the rows of one message stay together."""
    part: list[NewRow] = []
    size = 0
    for row in rows:
        own = len(row["body"] or b"") + 2000
        is_new = not part or (part[-1]["source"], part[-1]["stored_id"]) != (row["source"], row["stored_id"])
        if part and is_new and (len(part) >= (MOST_WRITES - 10) // 4 or size + own > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += own
    if part:
        yield part
