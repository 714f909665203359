"""History: what happened, by time."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.stores.moves.history import DAYS, Fold, HistoryRow, Merge
from onceward.testing.memory.sessions import move
from onceward.testing.memory.tables import Tables


class History:
    """Counts, only ever added to and folded."""

    @move
    def record(self, tables: Tables, rows: Sequence[HistoryRow]) -> None:
        _add(tables, rows)

    @move
    def fold(self, tables: Tables, fold: Fold, merge: Merge) -> int:
        until = (tables.now - int(fold.keep * 1_000_000)) // fold.longer * fold.longer
        old = [number for number, row in tables.history.items() if row["level"] == fold.level and _start(row) < until][
            : fold.limit
        ]
        if old:
            _add(tables, merge([tables.history.pop(number) for number in old]))
        return len(old)

    @move
    def forget(self, tables: Tables, keep: float) -> None:
        until = tables.now - int(keep * 1_000_000)
        for number, row in list(tables.history.items()):
            if row["level"] == DAYS and _start(row) < until:
                del tables.history[number]

    @move
    def read(self, tables: Tables, since: int, until: int, width: int) -> list[HistoryRow]:
        del width  # a reader adds up
        return [row for row in tables.history.values() if since <= _start(row) < until]


def _add(tables: Tables, rows: Sequence[HistoryRow]) -> None:
    for row in rows:
        start = tables.now if row["starts_at"] is None else row["starts_at"]
        tables.history[tables.number()] = {**row, "starts_at": start}


def _start(row: HistoryRow) -> int:
    return row["starts_at"] or 0
