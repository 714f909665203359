"""History, as statements.

Invariant: rows leave in the transaction that adds what they were folded into, and are locked in it first. So of two
processes that fold, one finds nothing, and whatever happens in between, each count is there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceward.flow import COMMIT, Each, Flow, Query
from onceward.stores.moves.history import COUNTED, DAYS, Fold, HistoryRow, Merge, row_of
from onceward.stores.relational.transaction import Transactions

_SUMS = slice(5, 11)
"""The columns that are sums, which are whole numbers, though PostgreSQL has a wider type for them."""


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

    def read(self, since: int, until: int, width: int) -> Flow[list[HistoryRow]]:
        asked = {"since": since, "until": until, "width": width}
        looks = [Query("history", {"level": level, **asked}) for level in range(COUNTED, DAYS + 1)]
        answers = yield from self._transactions.read(*looks)
        return [_added_up(row) for rows in answers for row in rows]


def _added_up(values: Sequence[Any]) -> HistoryRow:
    sums = map(int, values[_SUMS])
    return row_of([*values[: _SUMS.start], *sums, *values[_SUMS.stop :]])
