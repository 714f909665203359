"""What is due: found by strongly consistent queries of the queue's partitions, and, of a key, only what comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onceward.flow import Flow
from onceward.stores.dynamodb.catalog import subscriptions_of
from onceward.stores.dynamodb.items import Item, Place, numbered, place_of
from onceward.stores.dynamodb.row import Row
from onceward.stores.dynamodb.rows import RECHECK, Table
from onceward.stores.dynamodb.unit import Cancelled, Shared, Unit, repeated
from onceward.stores.moves.claims import Claim

PLACING = 250_000
"""For so many microseconds a message waits for one before it to be placed."""
MOST_CLAIMED = 20
"""So many messages can be finished together, and leave room for what their handler writes."""
SHORT = 100
"""A partition of the queue with at most so many items is read whole."""
ABANDONED = 86_400_000_000
"""A key to which nothing has come for so long, and that has no messages, is forgotten."""


def wanted(table: Table, claim: Claim | None, *, puts_off: bool = False) -> Flow[list[list[Row]]]:
    """What may be claimed: messages without a key, each alone, and groups of a key; what comes first, first.

    Of no claim: whatever some worker may claim.
    """
    limit = MOST_CLAIMED if claim is None else min(claim.limit, MOST_CLAIMED) if claim.worker else claim.limit
    due: list[list[Row]] = []
    fresh: list[list[Row]] = []
    for shard in range(table.layout.shards):
        pk = table.layout.at("Q", shard).pk
        heads, ready, timed = yield from _looked_at(table, claim, pk, limit)
        joining = {item["key_hash"] for item in timed if item.get("key_hash") is not None and puts_off}
        if joining:
            yield from _join_keys(table.base, joining)
            heads, ready, timed = yield from _looked_at(Table(table.base), claim, pk, limit)
            for item in [*heads, *ready, *timed]:
                table.seen[place_of(item)] = item
        for head in heads:
            group = yield from _of_key(table, claim, head, limit, puts_off=puts_off)
            if group:
                (due if group[0].due_at is not None else fresh).append(group)
        for items, found in ((ready, fresh), (timed, due)):
            for item in items:
                found.append([(yield from table.adopt(item))])
    due.sort(key=lambda group: (group[0].due_at or 0, group[0].seq))
    fresh.sort(key=lambda group: group[0].seq)
    return list(_cut(_chosen(due, fresh, claim), limit))


def _looked_at(table: Table, claim: Claim | None, pk: str, limit: int) -> Flow[list[list[Item]]]:
    """Free heads of keys, ready messages and those whose time has come, of one partition of the queue.

    One query is enough for a short queue; in a long one each kind is looked for by itself.
    """
    cursor = "r#" + numbered(claim.cursor if claim else 0)

    def is_wanted(item: Item) -> bool:
        if not item["sk"].startswith("k#"):
            is_due = item.get("due_at", 0) <= table.now and (item["sk"] >= cursor)
            return is_due and "worker" not in item and _suits(item, claim)
        return _free(item, table.now) and (claim is None or item["key_hash"] not in claim.held)

    first = yield from table.query(pk, limit=SHORT + 1, pages=1)
    if len(first) <= SHORT:
        return [[one for one in first if one["sk"].startswith(kind) and is_wanted(one)] for kind in ("k#", "r#", "t#")]
    found = []
    for start, kind in (("k#", "k$"), (cursor, "r$"), ("t#", "t$")):
        found.append((yield from table.query(pk, first=start, below=kind, limit=limit, only=is_wanted)))
    return found


def _join_keys(base: Shared, keys: set[int]) -> Flow[None]:
    """What was scheduled comes to its key when it is due; each worker that does that begins with what was due first."""
    look, found = Unit(base), []

    def is_due(item: Item) -> bool:
        return item.get("key_hash") in keys and item["state"] == "scheduled" and item["due_at"] <= look.now

    for shard in range(base.layout.shards):
        found += yield from look.query(base.layout.at("Q", shard).pk, first="t#", below="t$", only=is_due)
    for item in sorted(found, key=lambda one: (one["due_at"], one["seq"])):
        yield from repeated(lambda seq=item["seq"]: _join_key(base, seq))  # type: ignore[misc] # a call


def _join_key(base: Shared, seq: int) -> Flow[None]:
    """Behind all that came before."""
    table = Table(base)
    row = yield from table.row(seq)
    if row is not None and row.state == "scheduled" and row.may_run(table.now) and row.token is None:
        row.change(state="ready", due_at=None)
        yield from table.save()
        yield from table.commit()


def _chosen(due: list[list[Row]], fresh: list[list[Row]], claim: Claim | None) -> list[list[Row]]:
    if claim is None or claim.isolation:
        return sorted([*due, *fresh], key=lambda group: group[0].seq)
    if claim.destination is None:
        return [*due[: claim.retries], *fresh]
    both = [(place, group) for groups in (due, fresh) for place, group in enumerate(groups)]  # in turn
    return [group for _, group in sorted(both, key=lambda one: one[0])]


def _cut(groups: list[list[Row]], limit: int) -> Iterator[list[Row]]:
    for group in groups:
        if limit <= 0:
            return
        yield group[:limit]
        limit -= len(group)


def _free(head: Item, now: int) -> bool:
    return bool(head.get("due_at", 0) <= now and "worker" not in head and head.get("until", 0) <= now)


def _suits(item: Item, claim: Claim | None) -> bool:
    if claim is None:
        return True
    if item.get("subscription") not in claim.subscriptions or item.get("destination") != claim.destination:
        return False
    isolation: int = item.get("isolation", 0)
    return isolation > 0 if claim.isolation < 0 else isolation == claim.isolation


def _of_key(table: Table, claim: Claim | None, head: Item, limit: int, *, puts_off: bool) -> Flow[list[Row]]:
    """The first messages of a key that a claim may take together, none of them after one that it may not."""
    items = yield from table.query(table.layout.at("K", head["key_hash"]).pk, limit=limit)
    group: list[Row] = []
    until = table.now + RECHECK
    for item in items:
        row = yield from table.adopt(item)
        if not row.may_run(table.now) and not (yield from _has_come(table, row, group)):
            until = min(until, row.due_at or until)
            break
        if not _suits(item, claim):
            return group  # another claim is for it
        if row.sequence is None and (yield from _waits_for_placing(table, row)):
            until = table.now + PLACING
            break
        group.append(row)
        if claim is not None and claim.isolation:
            break
    if not group and puts_off:
        yield from _put_off(table, head, until, is_empty=not items)
    return group


def _has_come(table: Table, row: Row, group: Sequence[Row]) -> Flow[bool]:
    """Whether a message that waits for the number before it need not wait any more."""
    if row.state != "waiting" or row.sequence is None:
        return False
    applied = yield from table.applied(row.consumer, row.aggregate, row.key)
    before = max([applied, *(one.sequence or 0 for one in group if one.key == row.key)])
    return row.sequence <= before + 1


def _put_off(table: Table, head: Item, until: int, *, is_empty: bool) -> Flow[None]:
    """Nothing of a key may run before a moment: no look comes to it until then, unless something changes."""
    place = Place(head["pk"], head["sk"])
    unit = Unit(table.base)
    unit.seen[place] = table.seen[place]
    unit.counted.add(place)
    if not is_empty:
        unit.set(place, {**head, "due_at": until})
    elif head["n"] < table.now - ABANDONED:
        unit.remove(place)
    try:
        yield from unit.commit()
    except Cancelled:  # something has changed
        return


def _waits_for_placing(table: Table, row: Row) -> Flow[bool]:
    """Whether a message that came before may turn out to be of the same key."""
    return any(mark["since"] < row.seq for mark in (yield from unplaced_of(table, row.consumer)))


def unplaced_of(table: Table, consumer: int) -> Flow[list[Item]]:
    """The messages that a consumer will get and that are not placed yet."""
    if table.unplaced is None:
        table.unplaced = yield from table.query(table.layout.at("U").pk)
    marks = table.unplaced
    if not marks:
        return []
    items = yield from table.query(table.layout.version.pk, first="sub#", below="sub$")
    own = [one for one in subscriptions_of(items) if one.consumer_id == consumer and not one.retired]
    kinds = {(one.type, number) for one in own for number in (None, one.id)}
    return [mark for mark in marks if not mark.get("postponed") and (mark["type"], mark.get("subscription")) in kinds]
