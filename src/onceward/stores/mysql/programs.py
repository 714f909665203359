"""What the other databases say in one statement and this one in several, with a look at the rows between.

A program is a generator: it yields statements to be sent now and gets the rows of each; what it returns is sent with
what comes after it, so most of them cost no round trip of their own. Statements are parts of the section of a name.

Invariant: nothing that is read here is a guard. What is sent next has the condition in itself, or holds the lock under
which it was read.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from onceward.domain import identity
from onceward.stores.mysql.locks import tried
from onceward.stores.mysql.statement import PACKET, Named

Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class Tail:
    """The last statements of a program, and what its answer is, given their rows; without it, all of those."""

    statements: Sequence[bytes] = ()
    answer: Callable[[list[Rows]], Rows] | None = None

    def answered(self, rows: list[Rows]) -> Rows:
        """The answer of the program."""
        return self.answer(rows) if self.answer else [row for some in rows for row in some]


LAST_PLACE = (1 << 63) - 1
"""Of what is scheduled, until it is claimed."""

Program = Generator[Sequence[bytes], list[Rows], Tail]


@dataclass(slots=True)
class Ask:
    """A request for a named statement: its parts, what they are told, and how values are written."""

    named: Named
    name: str
    params: dict[str, Any]
    records: Sequence[Mapping[str, Any]]
    write: Callable[[Any], bytes]
    latest: bytes = b""
    keeps_view: bool = False
    """It is in a caller's transaction that keeps to a view of its own."""

    def part(self, number: int, /, *, of: str = "", **more: Any) -> bytes:
        """A statement of the section, with its values."""
        statement = self.named[of or self.name][number]
        return statement.rendered({**self.params, **more}, self.write, self.records, self.latest)

    def parts(self, *numbers: int, **more: Any) -> list[bytes]:
        """Several of them."""
        return [self.part(number, **more) for number in numbers]


def plain(ask: Ask) -> Tail:
    """All statements of a section at once."""
    if "receipt" not in ask.params:
        ask.params["receipt"] = identity.new_number()
    return Tail(ask.parts(*range(len(ask.named[ask.name]))))


def receive(ask: Ask) -> Program:
    """Store rows, and what belongs to those that are new."""
    ask.params["receipt"] = identity.new_number()
    if ask.keeps_view:  # in such a transaction a condition would lock the catalog until the caller's commit
        catalog = ask.params["catalog"]
        if catalog is not None and (yield [ask.part(0, of="catalog")])[0][0][0] != catalog:
            return Tail()
        ask.params["catalog"] = None
    # Numbers are drawn in the order in which rows are inserted: the order of arrival.
    _, _, stored = yield ask.parts(0, 1, 2)
    # Stored all the same, in this very transaction: nobody else can have seen them.
    if outdated := [seq for _, seq, _, is_outdated in stored if is_outdated]:
        return Tail([ask.part(3, outdated=outdated)])
    rows = [row[:3] for row in stored]
    if not rows:
        return Tail()
    known = {ordinal: (seq, received_at) for ordinal, seq, received_at in rows}
    fresh = [
        {**record, "seq": known[record["ordinal"]][0], "received_at": known[record["ordinal"]][1]}
        for record in ask.records
        if record["ordinal"] in known
    ]
    bodies, *queue = ask.named[ask.name][4:]
    written = [bodies.rendered(ask.params, ask.write, some) for some in _by_size(fresh)]
    written += [part.rendered(ask.params, ask.write, fresh) for part in queue]
    return Tail(written, lambda _: rows)


def _by_size(records: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    found: list[list[Mapping[str, Any]]] = [[]]
    size = 0
    for record in records:
        own = len(record["body"] or b"")
        if found[-1] and size + own > PACKET:
            found.append([])
            size = 0
        found[-1].append(record)
        size += own
    return found


HOLDERS = 16
"""How many callers' transactions hold the catalog at a time, where a lock cannot be shared."""


def hold_catalog(ask: Ask) -> Program:
    """Return whether the transaction keeps to a view of its own."""
    ask.params["keeps_view"] = ask.keeps_view
    if ask.named.is_tidb:
        yield []  # see `tried`
        # A transaction that receives again begins where it did before, and finds its own row.
        first = crc32(f"{os.getpid()} {threading.get_ident()}".encode()) % HOLDERS
        for place in range(first, first + HOLDERS):
            (rows,) = yield from tried(lambda places: ask.part(0, place=places[0]), [place % HOLDERS + 1])
            if rows:
                return Tail((), lambda _: rows)  # noqa: B023 - it is the last one
    return Tail(ask.parts(1, place=1))


def lock_free_keys(ask: Ask) -> Program:
    """Try the locks of keys; their rows are there already (`BEFORE_BEGIN`)."""
    if ask.named.is_tidb:
        yield []
    (rows,) = yield from tried(lambda keys: ask.part(1, keys=keys), [record["key_hash"] for record in ask.records])
    locked = [key for (key,) in rows]
    return Tail(ask.parts(2, keys=locked) if locked else [], lambda _: rows)


def lock_ledger(ask: Ask) -> Program:
    """Lock those rows of the ledger that no other has locked."""
    if ask.named.is_tidb:
        yield []
    (rows,) = yield from tried(lambda seqs: ask.part(0, seqs=seqs), ask.params["seqs"])
    return Tail((), lambda _: rows)


def claim(ask: Ask) -> Program:
    """Take due messages."""
    ask.params.setdefault("held", [])
    *_, me, due, fresh = yield [*_kept_from_take_over(ask), *ask.parts(1, 2)]
    picked = [*due, *fresh][: ask.params["limit"]] if me else []
    return (yield from _taken(ask, picked))


def claim_outgoing(ask: Ask) -> Program:
    """Take due messages to a destination: new ones and those tried again in turn."""
    *_, me, due, fresh = yield [*_kept_from_take_over(ask), *ask.parts(0, 1)]
    turns = sorted([*enumerate(due), *enumerate(fresh)], key=lambda turn: turn[0])
    return (yield from _taken(ask, [row for _, row in turns[: ask.params["limit"]]] if me else []))


def claim_isolated(ask: Ask) -> Program:
    """Take isolated messages of a level; those whose key is locked are passed by."""
    *_, me, waiting = yield [*_kept_from_take_over(ask), ask.part(0)]
    return (yield from _taken(ask, waiting if me else []))


_LOCK_WORKER, _SEE_WORKER = 13, 14


def _kept_from_take_over(ask: Ask) -> list[bytes]:
    """What asks whether the worker of a claim is there, and keeps it there until the commit."""
    numbers = (_LOCK_WORKER, _SEE_WORKER) if ask.named.is_tidb else (0,)
    return [ask.part(number, of="claim") for number in numbers]


def lock_worker(ask: Ask) -> Tail:
    """Wait for a claim of a worker that is being committed, before its claims come off."""
    return claimed_by(ask)


def claimed_by(ask: Ask) -> Tail:
    """Wait for a claim of a worker that is being committed, then look at what it has."""
    own = ask.parts(0)
    return Tail([ask.part(_LOCK_WORKER, of="claim"), *own] if ask.named.is_tidb else own, lambda rows: rows[-1])


def _taken(ask: Ask, picked: Rows) -> Program:
    """Lock the keys of rows, and claim those whose keys are locked."""
    keys = sorted({row[1] for row in picked if row[1] is not None})
    locks: list[bytes] = []
    if keys:
        there_now = ask.part(4, of="claim", keys=keys)
        locked, there = yield from tried(lambda some: ask.part(3, of="claim", keys=some), keys, there_now)
        # What is there and was not locked is somebody else's; what is not there is made, which waits for nobody
        # but another claim.
        free = {key for (key,) in locked} | (set(keys) - {key for (key,) in there})
        picked = [row for row in picked if row[1] is None or row[1] in free]
        keys = sorted({row[1] for row in picked if row[1] is not None})
        locks = [ask.part(5, of="claim", keys=keys)] if keys else []
    picked = picked[: ask.params["limit"]]
    if not picked:
        return Tail()
    if any(row[2] == LAST_PLACE for row in picked):
        if keys:  # places are drawn under the locks of their keys, and by the first of each
            *_, others = yield [*locks, ask.part(12, of="claim", keys=keys)]
            picked, locks = _first_of_their_keys(picked, others), []
        if not picked:
            return Tail()
    seqs = [row[0] for row in picked]
    joined = yield from _joining(ask, [row for row in picked if row[2] == LAST_PLACE])
    taken, found = (ask.part(number, of="claim", seqs=seqs) for number in (6, 7))
    return Tail([*locks, taken, *joined, found], lambda rows: rows[-1])


def _first_of_their_keys(picked: Rows, others: Rows) -> Rows:
    """Without what was scheduled for later than another message of its key that is due and not among them.

    Another lane is about to claim that one: it locked the row first, and the key not yet.
    """
    mine = {row[0] for row in picked}
    first: dict[int, tuple[int, int]] = {}
    for seq, key, due_at in others:
        if seq not in mine:
            first[key] = min(first.get(key, (due_at, seq)), (due_at, seq))
    return [row for row in picked if row[2] != LAST_PLACE or row[1] not in first or (row[3], row[0]) < first[row[1]]]


def _joining(ask: Ask, scheduled: Rows) -> Generator[Sequence[bytes], list[Rows], list[bytes]]:
    """What gives messages that were scheduled their places: after all that has come, in the order of their times."""
    if not scheduled:
        return []
    receipt = identity.new_number()
    ask.records = [{"stored_id": b"%d.%d" % (receipt, number)} for number in range(len(scheduled))]
    drawn = yield [ask.part(number, of="claim", receipt=receipt) for number in (8, 9, 10)]
    ask.records = ()
    in_turn = sorted(scheduled, key=lambda row: (row[3], row[0]))
    return [ask.part(11, of="claim", seq=row[0], place=place) for row, (place,) in zip(in_turn, drawn[1], strict=True)]


def park(ask: Ask) -> Program:
    """Take the claim off what has to wait."""
    (rows,) = yield ask.parts(0)
    earlier = [seq for seq, _, is_behind, _, _ in rows if is_behind]
    unplaced = [seq for seq, _, is_behind, _, waits in rows if waits and not is_behind]
    busy = [seq for seq, _, is_behind, meets, waits in rows if meets and not is_behind and not waits]
    answer = [
        *((seq, "waiting") for seq in earlier),
        *((seq, "unplaced") for seq in unplaced),
        *((seq, state) for seq, state, *_ in rows if seq in busy),
    ]
    groups = ((1, earlier), (2, unplaced), (3, busy))
    wanted = [ask.part(number, earlier=seqs, unplaced=seqs, busy=seqs) for number, seqs in groups if seqs]
    return Tail(wanted, lambda _: answer)


def fair_share(ask: Ask) -> Program:
    """How many messages each lane would have."""
    ((lanes,),) = (yield ask.parts(0))[0]
    asked = ask.parts(1, 2, most=int(ask.params["limit"] * lanes))
    return Tail(asked, lambda rows: [(math.ceil((rows[0][0][0] + rows[1][0][0]) / lanes),)])


def finish(ask: Ask) -> Tail:
    """End the transaction of handlers."""
    seqs = ask.params["seqs"]
    ask.params["first"], ask.params["last"] = min(seqs, default=0), max(seqs, default=0)
    return _finished(ask)


def finish_direct(ask: Ask) -> Tail:
    """End the transaction that has received what its handlers ran."""
    return _finished(ask)


def _finished(ask: Ask) -> Tail:
    ask.params["numbers"] = f"[{', '.join(map(str, ask.params['seqs']))}]"
    without_fence = 0 if ask.params["fence"] else 1
    return Tail(ask.parts(*range(without_fence, len(ask.named[ask.name]))), lambda _: [])


def promote(ask: Ask) -> Tail:
    """Let the next message of each key go on."""
    ask.records = [{"key_hash": key} for key in ask.params["key_hashes"]]
    return Tail(ask.parts(0, 1, 2) if ask.records else [])


def lock_keys(ask: Ask) -> Tail:
    """Lock keys, in order."""
    return Tail(ask.parts(0, key_hashes=sorted(ask.params["key_hashes"])) if ask.params["key_hashes"] else [])


def awaiting(ask: Ask) -> Tail:
    """Which destinations have something."""
    ask.records = [{"destination": name} for name in ask.params["destinations"]]
    return Tail(ask.parts(0) if ask.records else [])


def hasten(ask: Ask) -> Program:
    """Make due now what is due later."""
    (rows,) = yield ask.parts(0)
    changed = ask.parts(1, seqs=[seq for (seq,) in rows]) if rows else []
    return Tail(changed, lambda _: rows)


def unhandled_types(ask: Ask) -> Tail:
    """Types that wait for a process that knows them."""
    return Tail(ask.parts(1 if ask.named.is_tidb else 0))


def unhandled(ask: Ask) -> Program:
    """The first of the messages that wait to be placed, locked."""
    asked = [ask.part(0, type=name) for name in ask.params["types"]]
    asked += [ask.part(1, subscription=number) for number in ask.params["subscriptions"]]
    found = (yield asked) if asked else []
    seqs = sorted(seq for rows in found for (seq,) in rows)[: ask.params["limit"]]
    return Tail(ask.parts(2, seqs=seqs) if seqs else [])


def keep_first_types(ask: Ask) -> Program:
    """Decide cases whose bytes are the first ones."""
    (rows,) = yield ask.parts(0)
    decided = ask.parts(1, 2, cases=[case for _, case in rows]) if rows else []
    return Tail(decided, lambda _: [(seq,) for seq, _ in rows])


def forget_messages(ask: Ask) -> Program:
    """Forget messages, and all about them."""
    (rows,) = yield ask.parts(0)
    gone = ask.parts(*range(1, 9), gone=[seq for (seq,) in rows]) if rows else []
    return Tail(gone, lambda _: rows)


def forget_effects(ask: Ask) -> Program:
    """Forget effects, and the locks of keys that nothing has any more."""
    *_, unused = yield ask.parts(0, 1, 2)
    if not unused:
        return Tail((), lambda _: [])
    keys = [key for (key,) in unused]
    (rows,) = yield from tried(lambda some: ask.part(1, of="lock_free_keys", keys=some), keys)
    return Tail(ask.parts(3, keys=[key for (key,) in rows]), lambda _: [])


def performed(ask: Ask) -> Program:
    """What a request for a named statement sends."""
    found = PROGRAMS.get(ask.name, plain)(ask)
    return found if isinstance(found, Tail) else (yield from found)


BEFORE_BEGIN = "lock_free_keys"
"""Its first statement is committed before the transaction begins."""

PROGRAMS: Mapping[str, Callable[[Ask], Tail | Program]] = {
    "receive_direct": receive,
} | {
    one.__name__: one
    for one in (
        receive,
        finish_direct,
        hold_catalog,
        lock_free_keys,
        lock_ledger,
        claim,
        claim_outgoing,
        claim_isolated,
        lock_worker,
        claimed_by,
        park,
        fair_share,
        finish,
        promote,
        lock_keys,
        awaiting,
        hasten,
        unhandled_types,
        unhandled,
        keep_first_types,
        forget_messages,
        forget_effects,
    )
}
"""By the names of their sections; of all others the statements are sent as they stand."""
