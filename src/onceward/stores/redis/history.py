"""History: what happened, by time."""

from __future__ import annotations

import json
from collections.abc import Sequence

from onceward.flow import Flow
from onceward.stores.moves.history import DAYS, Fold, HistoryRow, Merge
from onceward.stores.redis.requests import asked, done


class History:
    """Counts, only ever added to and folded."""

    def record(self, rows: Sequence[HistoryRow]) -> Flow[None]:
        yield from done("record_history", {"rows": _given(rows)})

    def fold(self, fold: Fold, merge: Merge) -> Flow[int]:
        given = {"level": fold.level, "longer": fold.longer, "keep": fold.keep, "limit": fold.limit}
        while old := (yield from asked("old_history", given)):
            merged = merge([_row(one) for one in old])
            # Where another process has folded some of them meanwhile, nothing happens, and it is looked again.
            if (yield from done("fold_history", {"level": fold.level, "old": old, "rows": _given(merged)})):
                break
        return len(old or ())

    def forget(self, keep: float) -> Flow[None]:
        yield from done("forget_history", {"level": DAYS, "keep": keep})

    def read(self, since: int, until: int, width: int) -> Flow[list[HistoryRow]]:
        del width  # the server does not read what is in a row
        found = yield from asked("history", {"since": str(since), "until": str(until)})
        return [_row(one) for one in found or ()]


def _given(rows: Sequence[HistoryRow]) -> list[dict[str, object]]:
    """Each as text, which the server does not read, with what it must know beside it."""
    return [
        {
            "level": row["level"],
            "at": None if row["starts_at"] is None else str(row["starts_at"]),
            "row": json.dumps(row),
        }
        for row in rows
    ]


def _row(kept: str) -> HistoryRow:
    """What is kept: when it begins, a number of its own, and the row."""
    start, _, text = kept.split("|", 2)
    row: HistoryRow = json.loads(text)
    row["starts_at"] = int(start)
    return row
