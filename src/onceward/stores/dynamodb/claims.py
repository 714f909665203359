"""Claims: which messages a worker takes. A message without a key by its own item, those of a key by the key's head.

Due messages are found by strongly consistent queries of the queue's partitions, never by an index. A claim is a write
on the condition that the item is as it was read. The worker's own item is read after that: a process that declares
another one dead says so there first and looks for its claims then, so either it sees the claim or this sees that it is
dead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onceward.flow import Flow
from onceward.stores.dynamodb.due import wanted
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.row import Row
from onceward.stores.dynamodb.rows import HOLD, Table
from onceward.stores.dynamodb.unit import Cancelled, Shared, Unit, repeated
from onceward.stores.moves.claims import PASS, Claim, Claimed, ClaimedRow, in_sequence

LARGE = 262_144
"""A body of more bytes does not come with its claim."""


class Claims:
    """Looks for due messages, and takes them."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    # Looking

    def first_due(self, subscriptions: Sequence[int]) -> Flow[set[int]]:
        found = yield from wanted(Table(self._base), Claim(0, 0, subscriptions, limit=1, retries=1))
        return {row.subscription for rows in found for row in rows if row.subscription is not None}

    def fair_share(self, claim: Claim) -> Flow[int]:
        table = Table(self._base)
        workers = yield from table.query(self._base.layout.at("W").pk)
        lanes = max(1, sum(int(worker["lanes"]) for worker in workers))
        look = Claim(0, 0, claim.subscriptions, limit=claim.limit, retries=claim.limit, destination=claim.destination)
        found = sum(len(rows) for rows in (yield from wanted(table, look)))
        return (found + lanes - 1) // lanes

    def keys_in_front(self, claim: Claim) -> Flow[set[int]]:  # noqa: ARG002 - a key that is held has no row in front
        yield from ()
        return set()

    def isolation_level(self, subscriptions: Sequence[int], destination: str | None) -> Flow[int]:
        table = Table(self._base)
        look = Claim(0, 0, subscriptions, limit=1000, retries=1000, destination=destination, isolation=-1)
        found = yield from wanted(table, look)
        return max((row.isolation for rows in found for row in rows), default=0)

    def awaiting(self, destinations: Sequence[str]) -> Flow[list[str]]:
        table = Table(self._base)
        found = yield from wanted(table, None)
        there = {row.destination for rows in found for row in rows if row.outgoing}
        return [name for name in destinations if name in there]

    def handled_elsewhere(self, lines: Sequence[str]) -> Flow[set[str]]:
        unit = Unit(self._base)
        workers = yield from unit.query(self._base.layout.at("W").pk)
        alive = [one for one in workers if not one.get("inline") and one["alive_until"] > unit.now]
        return {line for line in lines if any(line in one["handles"] for one in alive)}

    def body_of(self, seq: int, seconds: float) -> Flow[bytes]:  # noqa: ARG002 - the client has a limit of its own
        table = Table(self._base)
        row = yield from table.row(seq)
        if row is None:
            return b""
        (item,) = yield from table.get(row.ledger)
        return b"" if item is None else item.get("body") or b""

    # Taking

    def claim(self, claim: Claim) -> Flow[Claimed]:
        return (yield from take(self._base, claim))

    def still_claimed(self, worker: int, tokens: Collection[int]) -> Flow[set[int]]:
        rows = yield from held(Table(self._base), worker)
        return {row.seq for row in rows if row.token in tokens}

    def unclaim(self, worker: int, token: int, seqs: Sequence[int]) -> Flow[None]:
        def work() -> Flow[None]:
            table = Table(self._base)
            yield from unclaim(table, worker, token, seqs)
            yield from table.save()
            yield from table.commit()

        if seqs:
            yield from repeated(work)

    def unclaim_tokens(self, worker: int, tokens: Sequence[int]) -> Flow[None]:
        rows = yield from held(Table(self._base), worker)
        for token in tokens:
            for row in rows:
                if row.token == token:
                    yield from self.unclaim(worker, token, [row.seq])


def unclaim(table: Table, worker: int, token: int, seqs: Sequence[int]) -> Flow[None]:
    """Give messages of a claim back."""
    for row in (yield from table.find(seqs)).values():
        if row.carries(worker, token):
            row.unclaim()


def held(table: Table, worker: int | None) -> Flow[list[Row]]:
    """What a process has claimed, or what any process has."""

    def is_claimed(item: Item) -> bool:
        return "worker" in item if worker is None else item.get("worker") == worker

    rows = []
    for shard in range(table.layout.shards):
        for item in (yield from table.query(table.layout.at("Q", shard).pk, only=is_claimed)):
            if item["sk"].startswith("k#"):
                yield from table.of_key(item["key_hash"])
                seqs = item.get("seqs", ())
                rows += [row for row in table.rows.values() if row.key_hash == item["key_hash"] and row.seq in seqs]
            else:
                rows.append((yield from table.adopt(item)))
    return sorted(rows, key=lambda row: row.seq)


def take(base: Shared, claim: Claim) -> Flow[Claimed]:
    """Claim due messages that are at the head of their keys."""
    table = Table(base)
    found = yield from wanted(table, claim, puts_off=True)
    rows: list[Row] = []
    for group in found:
        if (yield from _claim(base, table, claim, group)):
            rows += group
    if not rows:
        return Claimed(())
    if not (yield from is_registered(base, claim.worker)):  # declared dead
        for row in rows:
            yield from repeated(lambda row=row: _give_back(base, claim, [row.seq], {}))  # type: ignore[misc] # a call
        return Claimed(())
    for row in rows:
        base.remember(row.seq, table.home(row))
    return (yield from _kept(base, table, claim, rows))


def is_registered(base: Shared, worker: int) -> Flow[bool]:
    """Whether a process has not been declared dead."""
    (item,) = yield from Unit(base).get(base.layout.worker(worker))
    return item is not None and "dead" not in item


def _claim(base: Shared, looked: Table, claim: Claim, group: Sequence[Row]) -> Flow[bool]:
    """Write the claim into one item; False where that has changed since it was looked at."""
    table = Table(base)
    table.seen.update(looked.seen)
    for row in group:
        row.change(worker=claim.worker, token=claim.token)
        row.state = "retry" if row.state in ("waiting", "scheduled") else row.state
    first = group[0]
    if first.stands_in is None:
        place = looked.origins[first.seq]
        table.set(place, first.item())
    else:
        place = table.layout.head(first.stands_in)
        head = table.item(place) or {}
        seqs = sorted(row.seq for row in group)
        mine = {"worker": claim.worker, "token": claim.token, "seqs": seqs}
        table.set(place, {**head, **mine, **dict.fromkeys(("due_at", *HOLD))})  # a hold that has run out is over
    try:
        yield from table.commit()
    except Cancelled:  # or the answer to the first of two calls of the client was lost: then it is ours
        (item,) = yield from Unit(base).get(place)
        return item is not None and (item.get("worker"), item.get("token")) == (claim.worker, claim.token)
    return True


def _give_back(base: Shared, claim: Claim, seqs: Sequence[int], waiting: Mapping[int, int | None]) -> Flow[None]:
    table = Table(base)
    yield from unclaim(table, claim.worker, claim.token, seqs)
    for seq, due in waiting.items():
        if seq in table.rows and due is not None:
            table.rows[seq].change(state="waiting", due_at=due)
    yield from table.save()
    yield from table.commit()


def _kept(base: Shared, table: Table, claim: Claim, rows: list[Row]) -> Flow[Claimed]:
    items = yield from table.get(*(row.ledger for row in rows))
    claimed = [_claimed(table, row, item) for row, item in zip(rows, items, strict=True) if item is not None]
    claimed.sort(key=lambda row: (row.place, row.seq) if row.key_hash is not None else (row.seq, row.seq))
    kept, parked = [(row, PASS) for row in claimed], False
    if claim.gaps is not None:
        whose = {row.seq: row for row in rows}
        applied = {}
        for one in claimed:
            row = whose[one.seq]
            applied[row.seq] = yield from table.applied(row.consumer, row.aggregate, row.key)
        kept, waiting = in_sequence(claimed, applied, claim.gaps, claim.rests)
        due = {
            seq: None if seconds is None else table.now + int(seconds * 1_000_000) for seq, seconds in waiting.items()
        }
        if waiting:
            yield from repeated(lambda: _give_back(base, claim, list(waiting), due))
        parked = bool(waiting)
    subscriptions = frozenset(row.subscription for row in rows if row.subscription is not None)
    return Claimed(kept, len(rows), subscriptions, parked)


def _claimed(table: Table, row: Row, item: Item) -> ClaimedRow:
    body = item.get("body")
    return ClaimedRow(
        seq=row.seq,
        subscription=row.subscription or 0,
        key_hash=row.key_hash,
        place=row.place,
        sequence=row.sequence,
        attempts=row.attempts,
        source=item["source"],
        id=item["id"],
        type=item["type"],
        version=item["version"],
        key=row.key,
        headers=item.get("headers"),
        body=body if body is None or len(body) <= LARGE else None,
        destination=item.get("destination"),
        key_from=item.get("key_from"),
        received_at=row.received_at,
        age=(table.now - row.since) / 1_000_000,
    )
