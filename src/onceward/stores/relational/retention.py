"""Retention, as statements.

Invariant: that a message is finished, and was long enough ago, is a condition of the deleting statement itself, which
sees everything that was committed before its rows were locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceward.flow import COMMIT, ROLLBACK, Begin, Flow, Query
from onceward.stores.moves.operations import Order
from onceward.stores.moves.retention import Archivable, PruneBatch, PrunedBatch, StoredBody, StoredCase
from onceward.stores.relational.queue import audit
from onceward.stores.relational.transaction import Transactions

_WALKS = {
    "bodies": ("next_bodies", "drop_bodies"),
    "messages": ("next_ledger", "forget_messages"),
    "runs": ("next_runs", "forget_runs"),
}
"""The statements that look at the next rows, and that remove what is old among them."""


class Retention:
    """What keeps the tables small, and what erases."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions, self._run, self._read = transactions, transactions.run, transactions.read

    def take_turn(self, task: str, every: float) -> Flow[bool]:
        (rows,) = yield from self._run(Query("take_turn", {"task": task, "every": every}))
        return bool(rows)

    def give_turn(self, task: str) -> Flow[None]:
        yield from self._run(Query("give_turn", {"task": task}))

    def latest_sources(self) -> Flow[dict[str, float]]:
        (rows,) = yield from self._read(Query("latest_source"), by_index=True)
        return dict(rows)

    def rotate_partition(self, seconds: float) -> Flow[None]:
        yield from self._run(Query("rotate_partition", {"seconds": seconds}))

    def old_partitions(self, keep: float) -> Flow[list[int]]:
        (rows,) = yield from self._run(Query("old_partitions", {"keep": keep}))
        return [partition for (partition,) in rows]

    def drop_partition(self, partition: int, lock_wait: float, *, archive_first: bool) -> Flow[bool]:
        statement = self._transactions.limits.statement
        yield Begin(statement, lock_wait, statement, by_index=True)
        rows = yield Query("drop_partition", {"partition": partition, "archive_first": archive_first})
        yield COMMIT
        return bool(rows and rows[0][0])

    def prune_batch(self, batch: PruneBatch) -> Flow[PrunedBatch]:
        look, remove = _WALKS[batch.what]
        yield self._transactions.short()
        rows = yield Query(look, {"after": batch.after, "keep": batch.keep, "limit": batch.limit})
        old = [number for number, is_old in rows if is_old]
        if old and batch.what != "runs":
            locked = yield Query("lock_ledger", {"seqs": old})
            old = [number for (number,) in locked]
        gone: list[Any] = (yield _removal(remove, old, batch)) if old else []
        yield COMMIT
        at_end = len(rows) < batch.limit or not any(is_old for _, is_old in rows)
        return PrunedBatch(None if at_end else rows[-1][0], len(gone))

    def forget_effects(self, keep: float) -> Flow[None]:
        yield from self._run(Query("forget_effects", {"keep": keep}))

    def bodies_after(self, seq: int, limit: int) -> Flow[list[StoredBody]]:
        (rows,) = yield from self._run(Query("bodies_after", {"after": seq, "limit": limit}))
        return [StoredBody(*row) for row in rows]

    def cases_after(self, case: int, limit: int) -> Flow[list[StoredCase]]:
        (rows,) = yield from self._run(Query("cases_after", {"after": case, "limit": limit}))
        return [StoredCase(*row) for row in rows]

    def same_id(self, source: str, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        which = {"source": source, "from_id": from_id, "below_id": below_id}
        (rows,) = yield from self._run(Query("same_id", which))
        return sorted(seq for (seq,) in rows)

    def erase(self, order: Order) -> Flow[list[str] | None]:
        which = {"seq": order.seq}
        yield self._transactions.short()
        rows = yield Query("lock_finished", which)
        if not rows:
            yield ROLLBACK
            return None
        yield Query("erase", which)
        yield audit("erase", *order)
        yield COMMIT
        return [name for name in rows[0][1:] if name is not None]

    def archivable(self, after: int, keep: float, limit: int) -> Flow[list[Archivable]]:
        (rows,) = yield from self._run(Query("archivable", {"after": after, "keep": keep, "limit": limit}))
        return [Archivable(*row) for row in rows]

    def drop_bodies(self, seqs: Sequence[int]) -> Flow[int]:
        yield self._transactions.short()
        locked = yield Query("lock_ledger", {"seqs": list(seqs)})
        gone = yield Query("drop_bodies", {"seqs": [seq for (seq,) in locked]})
        yield COMMIT
        return len(gone)


def _removal(statement: str, numbers: list[int], batch: PruneBatch) -> Query:
    if batch.what != "messages":
        return Query(statement, {"seqs": numbers})
    # What came long ago may have been finished only now: that is looked for in the range of the batch.
    which = {"seqs": numbers, "lowest": min(numbers), "highest": max(numbers)}
    return Query(statement, {**which, "keep": batch.keep, "archive_first": batch.archive_first})
