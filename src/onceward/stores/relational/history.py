"""History, as statements.

Invariant: rows leave in the transaction that adds what they were folded into, and are locked in it first. So of two
processes that fold, one finds nothing, and whatever happens in between, each count is there once.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceward.flow import COMMIT, Each, Flow, Query
from onceward.stores.moves.history import COUNTED, DAYS, Fold, HistoryRow, Merge, row_of
from onceward.stores.relational.transaction import Transactions


class History:
    """What happened."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions, self._run = transactions, transactions.run

    def record(self, rows: Sequence[HistoryRow]) -> Flow[None]:
        yield from self._run(Each("record_history", rows), durable=False)

    def fold(self, fold: Fold, merge: Merge) -> Flow[int]:
        yield self._transactions.short()
        rows = yield Query("lock_history", fold._asdict())
        if rows:
            yield Query("drop_history", {"ids": [number for number, *_ in rows]})
            yield Each("record_history", merge([row_of(values) for _, *values in rows]))
        yield COMMIT
        return len(rows)

    def forget(self, keep: float) -> Flow[None]:
        yield from self._run(Query("forget_history", {"keep": keep, "level": DAYS}))

    def read(self, since: int, until: int) -> Flow[list[HistoryRow]]:
        levels = range(COUNTED, DAYS + 1)
        looks = [Query("history", {"level": level, "since": since, "until": until}) for level in levels]
        answers = yield from self._transactions.read(*looks)
        return sorted((row_of(row) for rows in answers for row in rows), key=lambda row: row["starts_at"] or 0)
