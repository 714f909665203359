"""Inline: messages are handled before they are stored, and stored, with effects and "done", in one transaction.

Of two copies that run at the same time one finds at the end that the message is known, and goes with everything it
wrote. A message with a key holds its key's head for as long as its handler may run, so that no other begins meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onceward.errors import StoreConflict, StoreError
from onceward.flow import ROLLBACK, Flow
from onceward.stores.dynamodb.catalog import version_of
from onceward.stores.dynamodb.claims import is_registered, unclaim
from onceward.stores.dynamodb.due import unplaced_of
from onceward.stores.dynamodb.effects import move_effects
from onceward.stores.dynamodb.items import encoded_item
from onceward.stores.dynamodb.ledger import accept, counted, enter, identity_of, keep_marks, refuse_large, store
from onceward.stores.dynamodb.queue import outgoing, refuse_large_result
from onceward.stores.dynamodb.row import Row, new_row
from onceward.stores.dynamodb.rows import HOLD, Table
from onceward.stores.dynamodb.sessions import Keep, Kept
from onceward.stores.dynamodb.unit import Ask, Cancelled, Shared, Unit, repeated
from onceward.stores.moves.inline import BeginDirect, Begun, Enqueued, FinishDirect, Placed, Requeue, StoreClaimed
from onceward.stores.moves.ledger import NewRow, Stored
from onceward.stores.recording import Open, Savepoint

Turn = Literal["now", "later", "stale"]
MOST_DIRECT = 20
"""So many messages are received and handled in one transaction at most."""


@dataclass(slots=True)
class Received:
    """What is to be stored at the end, by number, and the keys that are held until then."""

    rows: Mapping[int, NewRow]
    fence: str
    keys: Mapping[int, int]
    """With the last number that was given in each."""


class Inline:
    """What a process does that handles messages as they come."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def begin_direct(self, begin: BeginDirect) -> Flow[Begun]:
        if len(begin.rows) > MOST_DIRECT:
            raise StoreError(
                f"{len(begin.rows)} messages are too many for one transaction of DynamoDB, which takes {MOST_DIRECT} "
                "with their effects; process them in parts, or receive them"
            )
        table = Table(self._base)
        for row in begin.rows:
            refuse_large(row["id"], row["body"], row["headers"])
        there = yield from table.get(*(identity_of(table, row) for row in begin.rows))
        fresh = [row for row, item in zip(begin.rows, there, strict=True) if item is None]
        if not fresh or (yield from version_of(table))["version"] != begin.catalog:
            return Begun({})
        keyed = [row for row in fresh if row["key_hash"] is not None and row["ordinal"] in begin.runs]
        keys = sorted({row["key_hash"] or 0 for row in keyed})
        held: dict[int, int] = {}
        busy = set()
        yield Open()
        # Should an answer be lost, whatever may be held is let go.
        yield Keep(Received({}, begin.fence, {}), 0, [_freed(table, key, begin.fence) for key in keys])
        for key_hash in keys:
            consumer = next(row["consumer"] for row in keyed if row["key_hash"] == key_hash)
            number = yield from self._holds(key_hash, consumer, begin)
            if number is None:
                busy.add(key_hash)
            else:
                held[key_hash] = number
        applied = {}
        for row in keyed:
            if row["sequence"] is not None:
                which = row["consumer"], row["aggregate"] or "", row["key"]
                applied[which] = yield from table.applied(*which)
        rows: dict[int, NewRow] = {}
        stored = {}
        for row in fresh:
            seq = yield from self._base.number()
            rows[seq], stored[row["ordinal"]] = row, Stored(seq, table.now)
        yield Keep(Received(rows, begin.fence, held), len(fresh), [_freed(table, key, begin.fence) for key in held])
        if begin.savepoint:
            yield Savepoint()
        return Begun(stored, busy, applied)

    def _holds(self, key_hash: int, consumer: int, begin: BeginDirect) -> Flow[int | None]:
        """Hold a key that has no messages, at its last number; None where it has, or another was faster."""
        table = Table(self._base)
        place = table.layout.head(key_hash)
        (head,) = yield from table.get(place)
        busy = head is not None and ("worker" in head or head.get("until", 0) > table.now)
        if busy or (yield from unplaced_of(table, consumer)):
            return None
        until = table.now + int(begin.seconds * 1_000_000)
        number = head["n"] if head else self._base.numbers.moment()
        table.set(place, {**(head or {}), "key_hash": key_hash, "n": number, "fence": begin.fence, "until": until})
        table.counted.add(place)
        try:
            yield from table.commit()
        except Cancelled:  # or the answer to the first of two calls of the client was lost: then it is ours
            (held,) = yield from Unit(self._base).get(place)
            if held is None or (held.get("fence"), held["n"]) != (begin.fence, number):
                return None
        if (yield from Table(self._base).query(table.layout.at("K", key_hash).pk, limit=1)):
            yield from tried(_freed(table, key_hash, begin.fence))
            return None
        return int(number)

    def finish_direct(self, finish: FinishDirect) -> Flow[None]:
        for result in finish.results.values():
            refuse_large_result(result)
        received: Received = yield Kept()
        queued = {one["seq"]: one for one in finish.queued}
        waiting = [row for seq, row in received.rows.items() if seq in queued and queued[seq]["key_hash"] is not None]
        numbers = yield from counted(self._base, waiting)
        sending = yield from counted(self._base, finish.outgoing)
        yield from repeated(lambda: self._finish(finish, received, queued, numbers, sending))

    def _finish(
        self,
        finish: FinishDirect,
        received: Received,
        queued: Mapping[int, Enqueued],
        numbers: dict[int, int],
        sending: dict[int, int],
    ) -> Flow[None]:
        table = Table(self._base)
        if not (yield from _still_new(table, received)):
            yield ROLLBACK
            return
        sent = yield from outgoing(table, finish.outgoing, sending)
        reasons, done = dict(finish.skipped), set(finish.seqs)
        rows: dict[int, Row] = {}
        for seq, row in received.rows.items():
            enter(table, {**row, "body": None} if seq in finish.forget_bodies else row, seq)  # type: ignore[typeddict-item] # forgotten
            if seq in done:
                how = "skip" if seq in reasons else "done"
                about = {"worker": finish.worker, "code_version": finish.code_version}
                result = finish.results.get(seq)
                table.is_done(new_row(table, row, seq, None), how=how, result=result, sent=sent.get(seq), **about)
            if seq in reasons:
                table.say("skip", seq, "onceward", reasons[seq])
            if seq in queued:
                rows[seq] = _queued(table, row, queued[seq], numbers.get(row["ordinal"]))
                table.add(rows[seq])
        for attempt in finish.attempts:
            table.add_attempt(rows[attempt["seq"]], attempt)
        for one in finish.applied:
            yield from table.advance_to(one.consumer, one.aggregate, one.key, one.sequence)
        for before, now in finish.effects.items():
            yield from move_effects(table, before, now)
        yield from keep_marks(table, finish.marks)
        yield from table.save()
        yield from table.commit(ends_tx=True)

    def requeue_own(self, messages: Sequence[Requeue]) -> Flow[dict[int, int]]:  # noqa: ARG002 - as below
        """No handler can commit on its own: what it writes is committed with "done"."""
        yield from ()
        return {}

    def store_claimed(self, claimed: StoreClaimed) -> Flow[Placed]:
        row = claimed.row
        table = Table(self._base)
        unkeyed = row["key_hash"] is None and not claimed.keyless
        turn = "now" if unkeyed else (yield from _turn(table, row, keyless=claimed.keyless))
        if not unkeyed and (claimed.after_crash or turn != "now"):
            stored = yield from store(self._base, [row], catalog=claimed.catalog)
            return Placed(claimed=False, stored=stored.get(row["ordinal"]))
        if not (yield from is_registered(self._base, claimed.worker)):
            return Placed(claimed=True, stored=None)
        numbers = yield from counted(self._base, [row])
        placed = yield from repeated(lambda: self._store_claimed(claimed, numbers.get(row["ordinal"])))
        if placed.stored is not None and not (yield from is_registered(self._base, claimed.worker)):
            seq = placed.stored.seq
            yield from repeated(lambda: _let_go(self._base, claimed, seq))
            return Placed(claimed=False, stored=placed.stored)
        return placed

    def _store_claimed(self, claimed: StoreClaimed, number: int | None) -> Flow[Placed]:
        table, row = Table(self._base), claimed.row
        (there,) = yield from table.get(identity_of(table, row))
        if there is not None or (yield from version_of(table))["version"] != claimed.catalog:
            return Placed(claimed=True, stored=None)
        if row["key_hash"] is not None:
            others = yield from table.of_key(row["key_hash"], limit=1)
            head = yield from table.head(row["key_hash"])
            if others or "worker" in head or head.get("until", 0) > table.now:
                stored = yield from accept(table, row, number)
                yield from table.commit()
                return Placed(claimed=False, stored=stored)
        seq = yield from self._base.number()
        enter(table, row, seq)
        claim = {"worker": claimed.worker, "token": claimed.token, "isolation": claimed.isolation}
        table.add(new_row(table, row, seq, number, **claim))
        yield from table.save()
        yield from table.commit()
        return Placed(claimed=True, stored=Stored(seq, table.now))


def _let_go(base: Shared, claimed: StoreClaimed, seq: int) -> Flow[None]:
    table = Table(base)
    yield from unclaim(table, claimed.worker, claimed.token, [seq])
    yield from table.save()
    yield from table.commit()


def _turn(table: Table, row: NewRow, *, keyless: bool) -> Flow[Turn]:
    """Whether it is this message's turn within its key."""
    if row["key_hash"] is None:
        return "later" if keyless else "now"
    head = yield from table.head(row["key_hash"])
    if "worker" in head or head.get("until", 0) > table.now:
        return "later"
    if (yield from table.of_key(row["key_hash"], limit=1)) or (yield from unplaced_of(table, row["consumer"])):
        return "later"
    if row["sequence"] is None:
        return "now"
    applied = yield from table.applied(row["consumer"], row["aggregate"], row["key"])
    if row["sequence"] <= applied:
        return "stale"
    return "now" if row["sequence"] == applied + 1 else "later"


def let_go(base: Shared, holder: str) -> Flow[None]:
    """Free the keys that one held inline whose fences begin so."""
    unit = Unit(base)
    for shard in range(base.layout.shards):
        heads = yield from unit.query(
            base.layout.at("Q", shard).pk,
            first="k#",
            below="k$",
            only=lambda head: str(head.get("fence", "")).startswith(holder),
        )
        for head in heads:
            yield from tried(_freed(unit, head["key_hash"], head["fence"]))


def _freed(table: Unit, key_hash: int, fence: str) -> Ask:
    """The key's head is free again."""
    return Ask(
        "update_item",
        {
            "TableName": table.layout.table,
            "Key": encoded_item(table.layout.head(key_hash)._asdict()),
            "UpdateExpression": "REMOVE fence, #until, due_at",
            "ConditionExpression": "fence = :fence",
            "ExpressionAttributeNames": {"#until": "until"},
            "ExpressionAttributeValues": encoded_item({":fence": fence}),
        },
    )


def tried(ask: Ask) -> Flow[None]:
    """Do it, if its condition holds."""
    try:
        yield ask
    except Cancelled:
        return


def _still_new(table: Table, received: Received) -> Flow[bool]:
    """Nothing of it was stored meanwhile, and its keys are still held: the guard of the end.

    False where all of it was stored by a try whose answer was lost, and whose token DynamoDB has forgotten.
    """
    places = [identity_of(table, row) for row in received.rows.values()]
    for (seq, row), there in zip(received.rows.items(), (yield from table.get(*places)), strict=True):
        if there is not None and there["seq"] == seq:
            return False
        if there is not None:
            raise StoreConflict(f"message {row['id']!r} was stored while a copy of it was processed")
    for key_hash, number in received.keys.items():
        head = yield from table.head(key_hash)
        if head.get("fence") != received.fence:
            raise StoreConflict("a key was taken over while its message was processed")
        place = table.layout.head(key_hash)
        if head["n"] == number:  # nothing has come meanwhile
            table.counted.add(place)
            table.remove(place)
        else:
            table.set(place, {name: one for name, one in head.items() if name not in ("due_at", *HOLD)})
    return True


def _queued(table: Unit, row: NewRow, one: Enqueued, number: int | None) -> Row:
    """What is not run now, or has failed."""
    made = new_row(table, row, one["seq"], number)
    made.change(
        state=one["state"] if one["unplaced"] is None else "unhandled",
        due_at=None if one["after"] is None else table.now + one["after"],
        key_hash=one["key_hash"],
        sequence=one["sequence"],
        attempts=one["attempts"],
        subscription=one["subscription"],
    )
    if row["place"] is not None:
        made.place = one["place"]
    return made
