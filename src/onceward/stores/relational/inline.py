"""Handling messages as they come, as statements.

Invariant: with a key, a message runs only under the key lock, taken before a statement that finds no unfinished message
of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from onceward.flow import COMMIT, Each, Flow, Query, Request
from onceward.stores.moves.inline import BeginDirect, Begun, FinishDirect, Placed, Requeue, StoreClaimed, enqueued
from onceward.stores.moves.ledger import NewRow
from onceward.stores.relational.keys import removing
from onceward.stores.relational.ledger import keeping, sending, stored, storing
from onceward.stores.relational.queue import add_attempt, audit
from onceward.stores.relational.transaction import Transactions

Key = tuple[int, str, str | None]


class Inline:
    """What a process does that handles messages as they come."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def begin_direct(self, begin: BeginDirect) -> Flow[Begun]:
        opening = self._transactions.usual
        if begin.runs:
            opening = self._transactions.direct(begin.seconds, begin.fence, returns_soon=begin.returns_soon)
        # Whoever reads that a type has consumers must see, too, what was stored while it had none.
        held = [Query("hold_catalog")] if any(row["subscription"] is None for row in begin.rows) else []
        keyed = [row for row in begin.rows if row["key_hash"] is not None and row["ordinal"] in begin.runs]
        asked = Asking(keyed) if keyed else NOTHING
        after = [*asked.after, *([Query("savepoint")] if begin.savepoint else [])]
        receiving = Each("receive_direct", begin.rows, {"catalog": begin.catalog})
        _, *answers = yield (opening, *held, *asked.before, receiving, *after)
        first = len(held) + len(asked.before)
        fresh = stored(answers[first])
        if not fresh:
            yield COMMIT  # of nothing; after a rollback the driver would prepare every statement anew
            return Begun({})
        if begin.inside:
            rows = [enqueued(row, fresh[row["ordinal"]].seq) for row in begin.rows if row["ordinal"] in fresh]
            yield Each("enqueue", rows), Query("savepoint")
        if not keyed:
            return Begun(fresh)
        free = {key for (key,) in answers[len(held)]}
        busy = {key for (key,) in answers[first + 1]} | (asked.keys - free)
        far = answers[first + 2 : first + 2 + len(asked.numbered)]
        applied = {key: rows[0][0] for key, rows in zip(asked.numbered, far, strict=True) if rows}
        return Begun(fresh, busy, applied)

    def finish_direct(self, finish: FinishDirect) -> Flow[None]:
        requests: list[Request] = []
        if finish.inside:  # before anything else: what follows must be in that very transaction
            requests += [Query("release_savepoint"), Query("dequeue", {"seqs": sorted(finish.inside)})]
        requests += [audit("skip", seq, "onceward", reason) for seq, reason in finish.skipped]
        if finish.outgoing:
            requests.append(sending(finish.outgoing))
        if finish.forget_bodies:
            requests.append(Query("forget_bodies", {"seqs": list(finish.forget_bodies)}))
        if finish.results:
            requests.append(Each("store_results", [{"seq": seq, "result": one} for seq, one in finish.results.items()]))
        advancing = [Query("advance_inline", applied._asdict()) for applied in finish.applied]
        queueing = [Each("enqueue", finish.queued)] if finish.queued else []
        requests += removing(finish.leaves, *advancing, *queueing)
        requests += [add_attempt(attempt) for attempt in finish.attempts]
        requests += [Query("keep_effects", {"seq": old, "stored": new}) for old, new in finish.effects.items()]
        if finish.marks:
            requests += keeping(finish.marks)
        if finish.seqs:
            requests.append(_finish(finish))
        yield (*requests, COMMIT)

    def requeue_own(self, messages: Sequence[Requeue]) -> Flow[dict[int, int]]:
        found: dict[int, int] = {}
        yield self._transactions.short()
        for one in messages:
            if (yield Query("requeue_own", _requeue(one))):
                found[one.row["ordinal"]] = one.seq
                if one.attempt is not None:
                    yield add_attempt({**one.attempt, "seq": one.seq})
        yield COMMIT
        return found

    def store_claimed(self, claimed: StoreClaimed) -> Flow[Placed]:
        row = claimed.row
        yield self._transactions.short()
        # What is the first of its key while the key is locked is ours as if it were claimed: whatever comes later
        # finds it there.
        unkeyed = row["key_hash"] is None and not claimed.keyless
        ours = unkeyed or (not claimed.after_crash and (yield from _turn(row, keyless=claimed.keyless)) == "now")
        claim = {"worker": claimed.worker, "token": claimed.token, "isolation": claimed.isolation} if ours else {}
        rows, _ = yield (storing([row], catalog=claimed.catalog, **claim), COMMIT)
        return Placed(claimed=ours, stored=stored(rows).get(row["ordinal"]))


class Asking:
    """What is asked of the keys of some rows: before they are received, and in statements that begin after that."""

    def __init__(self, keyed: Sequence[NewRow]) -> None:
        owners = {key: row["consumer"] for row in keyed if (key := row["key_hash"]) is not None}
        self.keys = set(owners)
        self.numbered = list(dict.fromkeys(key_of(row) for row in keyed if row["sequence"] is not None))
        # Sorted, so that the locks of two batches are looked for in one order.
        records = [{"key_hash": one, "consumer": owners[one]} for one in sorted(owners)]
        self.before: list[Request] = [Each("lock_free_keys", records)] if keyed else []
        self.after: list[Request] = [Each("busy_keys", records)] if keyed else []
        for consumer, aggregate, name in self.numbered:
            self.after.append(Query("progress_of", {"consumer": consumer, "aggregate": aggregate, "key": name}))


NOTHING = Asking(())


def key_of(row: NewRow) -> Key:
    """Whose numbers a message counts in."""
    return row["consumer"], row["aggregate"] or "", row["key"]


def _turn(row: NewRow, *, keyless: bool) -> Flow[Literal["now", "later", "stale"]]:
    """Whether it is this message's turn within its key."""
    if row["key_hash"] is None:
        return "later" if keyless else "now"
    asked = Asking([row])
    free, busy, *far = yield (*asked.before, *asked.after)
    if not free or busy:
        return "later"
    if row["sequence"] is None:
        return "now"
    wanted = (far[0][0][0] if far[0] else 0) + 1
    if row["sequence"] < wanted:
        return "stale"
    return "now" if row["sequence"] == wanted else "later"


def _finish(finish: FinishDirect) -> Query:
    seqs = sorted(finish.seqs)
    who = {"worker": finish.worker, "code_version": finish.code_version, "fence": finish.fence}
    return Query("finish_direct", {**who, "seqs": seqs, "first": seqs[0], "last": seqs[-1], "expected": len(seqs)})


def _requeue(one: Requeue) -> dict[str, Any]:
    row = one.row
    columns = ("consumer", "source", "stored_id", "subscription", "key_hash", "place", "sequence", "unplaced")
    which = {name: row[name] for name in columns}  # type: ignore[literal-required] # each is a key of the row
    attempts = 0 if one.attempt is None else 1
    return {**which, "seq": one.seq, "attempts": attempts, "state": one.state, "after": one.after}
