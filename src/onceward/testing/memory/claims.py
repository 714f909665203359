"""Claims: which messages a worker takes. With keys, only those with nothing unfinished of their key before them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from onceward.domain.schedule import LAST_PLACE
from onceward.stores.moves.claims import PASS, Claim, Claimed, ClaimedRow, in_sequence
from onceward.testing.memory.sessions import Memory, move
from onceward.testing.memory.tables import QueueRow, Tables

LARGE = 262_144
"""A body of more bytes does not come with its claim."""
PLACING = 0.25
"""For so many seconds a message waits for one before it to be placed."""


class Claims:
    """Looks for due messages, and takes them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    # Looking

    @move
    def first_due(self, tables: Tables, subscriptions: Sequence[int]) -> set[int]:
        claim = Claim(0, 0, subscriptions, limit=1, retries=1)
        first = [*_ready(tables, claim)[:1], *_due(tables, claim)[:1]]
        return {row.subscription for row in first if row.subscription is not None}

    @move
    def fair_share(self, tables: Tables, claim: Claim) -> int:
        lanes = max(1, sum(worker.new.lanes for worker in tables.workers.values()))
        most = claim.limit * lanes
        found = len(_ready(tables, claim)[:most]) + len(_due(tables, claim)[:most])
        return (found + lanes - 1) // lanes

    @move
    def keys_in_front(self, tables: Tables, claim: Claim) -> set[int]:
        if claim.worker not in tables.workers:
            return set()
        front = [*_ready(tables, claim)[: claim.limit], *_due(tables, claim)[: claim.limit]]
        return {row.key_hash for row in front if row.key_hash is not None and row.key_hash not in claim.held}

    @move
    def isolation_level(self, tables: Tables, subscriptions: Sequence[int], destination: str | None) -> int:
        rows = (row for row in tables.queue.values() if row.subscription in subscriptions)
        return max(
            (row.isolation for row in rows if row.destination == destination and _may_run(tables, row)), default=0
        )

    @move
    def awaiting(self, tables: Tables, destinations: Sequence[str]) -> list[str]:
        found = {row.destination for row in tables.queue.values() if row.outgoing and _may_run(tables, row)}
        return [name for name in destinations if name in found]

    @move
    def handled_elsewhere(self, tables: Tables, lines: Sequence[str]) -> set[str]:
        alive = [one for one in tables.workers.values() if not one.inline and one.alive_until > tables.now]
        return {line for line in lines if any(line in one.new.handles for one in alive)}

    @move
    def body_of(self, tables: Tables, seq: int, seconds: float) -> bytes:  # noqa: ARG002 - it takes no time
        return tables.bodies[seq]["body"] if seq in tables.bodies else b""

    # Taking

    @move
    def claim(self, tables: Tables, claim: Claim) -> Claimed:
        return take(tables, claim, self._memory.keys)

    @move
    def still_claimed(self, tables: Tables, worker: int, tokens: Collection[int]) -> set[int]:
        return {row.seq for row in tables.queue.values() if row.worker == worker and row.token in tokens}

    @move
    def unclaim(self, tables: Tables, worker: int, token: int, seqs: Sequence[int]) -> None:
        unclaim(tables, worker, token, seqs)

    @move
    def unclaim_tokens(self, tables: Tables, worker: int, tokens: Sequence[int]) -> None:
        for row in list(tables.queue.values()):
            if row.worker == worker and row.token in tokens:
                tables.queue[row.seq] = row.unclaimed()


def unclaim(tables: Tables, worker: int, token: int, seqs: Sequence[int]) -> None:
    """Give messages of a claim back."""
    for seq in seqs:
        row = tables.queue.get(seq)
        if row is not None and row.carries(worker, token):
            tables.queue[seq] = row.unclaimed()


def take(tables: Tables, claim: Claim, held: Mapping[int, object]) -> Claimed:
    """Claim due messages that are at the head of their keys; a key that is processed inline now has none."""
    if claim.worker not in tables.workers:  # declared dead
        return Claimed(())
    found = [row for row in _wanted(tables, claim) if row.key_hash is None or row.key_hash not in held][: claim.limit]
    for row in found:
        state = "retry" if row.state in ("waiting", "scheduled") else row.state
        # What was scheduled joins its key: behind all that came before.
        place = tables.number() if row.place == LAST_PLACE else row.place
        tables.queue[row.seq] = row._replace(worker=claim.worker, token=claim.token, state=state, place=place)
    gone = dict(_parked(tables, claim, [tables.queue[row.seq] for row in found]))
    tables.queue.update(gone)
    rows = [_claimed(tables, tables.queue[row.seq]) for row in sorted(found) if row.seq not in gone]
    kept = [(row, PASS) for row in rows]
    if claim.gaps is not None:
        applied = {row.seq: _applied(tables, row.seq) for row in rows}
        kept, waiting = in_sequence(rows, applied, claim.gaps, claim.rests)
        for seq, seconds in waiting.items():
            tables.queue[seq] = tables.queue[seq].unclaimed(state="waiting", due_at=tables.after(seconds))
    waits = [row for row in gone.values() if row.state == "waiting"]
    return Claimed(
        kept=kept,
        found=len(found),
        subscriptions=frozenset(row.subscription for row in found if row.subscription is not None),
        parked=bool(waits) or len(kept) < len(rows),
        unplaced=any(row.due_at is not None for row in waits),
        stepped_back=frozenset(
            row.key_hash for row in gone.values() if row.state != "waiting" and row.key_hash is not None
        ),
    )


def _wanted(tables: Tables, claim: Claim) -> list[QueueRow]:
    """What may be claimed, what comes first, first."""
    if claim.isolation:
        rows = (row for row in tables.queue.values() if row.isolation == claim.isolation and _is_for(row, claim))
        return sorted(row for row in rows if row.destination == claim.destination and _may_run(tables, row))
    if claim.destination is None:
        return [*_due(tables, claim)[: claim.retries], *_ready(tables, claim)]
    due, ready = _due(tables, claim), _ready(tables, claim)  # in turn
    both = [(place, row) for rows in (due, ready) for place, row in enumerate(rows)]
    return [row for _, row in sorted(both, key=lambda one: one[0])]


def _ready(tables: Tables, claim: Claim) -> list[QueueRow]:
    """New messages, in the order of their coming."""
    rows = (row for row in tables.queue.values() if row.state == "ready" and row.seq >= claim.cursor)
    return sorted(row for row in rows if _is_ordinary(row, claim))


def _due(tables: Tables, claim: Claim) -> list[QueueRow]:
    """Messages whose time has come."""
    rows = [row for row in tables.queue.values() if row.due_at is not None and row.due_at <= tables.now]
    return sorted((row for row in rows if _is_ordinary(row, claim)), key=lambda row: (row.due_at or 0, row.seq))


def _is_ordinary(row: QueueRow, claim: Claim) -> bool:
    outgoing = claim.destination is not None
    where = (row.outgoing, row.destination) == (outgoing, claim.destination)
    return where and row.token is None and row.isolation == 0 and _is_for(row, claim)


def _is_for(row: QueueRow, claim: Claim) -> bool:
    return row.subscription in claim.subscriptions and (row.key_hash is None or row.key_hash not in claim.held)


def _may_run(tables: Tables, row: QueueRow) -> bool:
    is_due = row.due_at is not None and row.due_at <= tables.now
    return row.token is None and (row.state == "ready" or is_due)


def _parked(tables: Tables, claim: Claim, rows: Sequence[QueueRow]) -> Iterator[tuple[int, QueueRow]]:
    """What must not stay claimed: it waits behind an earlier one of its key, or steps back from a later one."""
    for row in rows:
        others = [] if row.key_hash is None else tables.of_key(row.key_hash)
        others = [one for one in others if not one.carries(claim.worker, claim.token)]
        if any(one.order < row.order for one in others):
            yield row.seq, row.unclaimed(state="waiting", due_at=None)
        elif row.key_hash is not None and row.sequence is None and _waits_for_placing(tables, row):
            yield row.seq, row.unclaimed(state="waiting", due_at=tables.after(PLACING))
        elif any(one.token is not None for one in others):
            # Nothing would promote a row that waits behind a later one.
            yield row.seq, row.unclaimed()


def _waits_for_placing(tables: Tables, row: QueueRow) -> bool:
    """Whether a message that came before may turn out to be of the same key."""
    subscription = tables.subscriptions.get(row.subscription or 0)
    consumer = subscription.consumer_id if subscription else None
    return any((one.seq if one.sequence is None else one.sequence) < row.seq for one in unplaced_of(tables, consumer))


def unplaced_of(tables: Tables, consumer: int | None) -> Iterator[QueueRow]:
    """The messages that a consumer will get and that are not placed yet."""
    own = [one for one in tables.subscriptions.values() if one.consumer_id == consumer and not one.retired]
    wanted = {(one.type, number) for one in own for number in (None, one.id)}
    for row in tables.queue.values():
        if row.state == "unhandled" and row.postponed == 0 and (row.type, row.subscription) in wanted:
            yield row


def _applied(tables: Tables, seq: int) -> int:
    keys = tables.keys_of(seq)
    return 0 if keys is None else tables.progress.get(keys, 0)


def _claimed(tables: Tables, row: QueueRow) -> ClaimedRow:
    body, received_at = tables.bodies[row.seq], tables.ledger[row.seq].received_at
    return ClaimedRow(
        seq=row.seq,
        subscription=row.subscription or 0,
        key_hash=row.key_hash,
        place=row.place,
        sequence=row.sequence,
        attempts=row.attempts,
        source=body["source"],
        id=body["id"],
        type=body["type"],
        version=body["version"],
        key=body["key"],
        headers=body["headers"],
        body=body["body"] if len(body["body"]) <= LARGE else None,
        destination=body["destination"],
        key_from=body["key_from"],
        received_at=received_at,
        age=tables.since(tables.since_due(row.seq)),
    )
