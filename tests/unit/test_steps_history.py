"""Each count of the history is in one row, whatever fails on the way there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward.domain.activity import Activity, Series
from onceward.errors import StoreConflict, StoreUnavailable
from onceward.settings import Settings
from onceward.steps.context import Context
from onceward.steps.history import keep_history, largest, merged, save_activity
from onceward.stores.moves.history import COUNTED, MINUTES, HistoryRow
from tests.unit.builders import context
from tests.unit.script import Lost, Script

PAID = Series("service", "shop", "paid")
MINUTE = 60_000_000
IDLE: dict[str, Any] = {"take_turn": [(1,)], "unserved": [], "lock_history": []}


def here(**changes: Any) -> Context:
    one = context(settings=Settings(maintenance=timedelta(seconds=60), **changes))
    one.activity = Activity(kept=True)
    return one


def row(start: int, **counts: Any) -> HistoryRow:
    nothing = dict.fromkeys(("received", "duplicates", "mismatches", "done", "failed", "dead"), 0)
    nothing |= dict.fromkeys(("backlog", "oldest", "lateness", "wait", "run"))  # type: ignore[arg-type] # not known
    series = {"level": COUNTED, "starts_at": start, "consumer": "service", "source": "shop", "type": "paid"}
    return {**series, **nothing, **counts}  # type: ignore[typeddict-item] # all of them


class TestSave:
    """What a process has counted is written in one transaction."""

    def test_it_is_counted_anew_afterwards(self) -> None:
        one, script = here(), Script({"record_history": []})
        one.activity.count("done", PAID, 2)
        for _ in range(2):
            script.run(save_activity(one))
        assert [written["done"] for written in script.params("record_history")] == [2]
        assert script.transactions == ["begin record_history commit"]

    @pytest.mark.parametrize("place", ["record_history", "commit"])
    @pytest.mark.parametrize("failure", [Lost(), StoreUnavailable("busy"), StoreConflict("deadlock")])
    def test_what_cannot_be_written_is_written_with_the_next(self, place: str, failure: Any) -> None:
        """And the caller goes on: the history is not worth a message."""
        one = here()
        one.activity.count("done", PAID)
        Script({"record_history": [], place: failure}).run(save_activity(one))
        one.activity.count("done", PAID)
        script = Script({"record_history": []})
        script.run(save_activity(one))
        assert [written["done"] for written in script.params("record_history")] == [2]


class TestKeep:
    """One process folds, looks at the backlog and forgets."""

    def test_a_turn(self) -> None:
        script = Script({**IDLE, "forget_history": []})
        assert script.run(keep_history(here())) == 0
        assert [one.split()[1] for one in script.transactions] == [
            "take_turn",
            "unserved",
            *["lock_history"] * 3,
            "forget_history",
        ]

    @pytest.mark.parametrize("changes", [{"history": False}, {"maintenance": None}])
    def test_a_process_without_it_asks_nothing(self, changes: dict[str, Any]) -> None:
        one = context(settings=Settings(**changes))
        script = Script({})
        script.run(keep_history(one))
        assert script.transactions == []

    def test_another_has_the_turn(self) -> None:
        script = Script({"take_turn": []})
        script.run(keep_history(here()))
        assert script.transactions == ["begin take_turn commit"]


class TestMerged:
    """Rows of one level as rows of the next."""

    def test_counts_of_one_minute_are_added_up(self) -> None:
        """Of a backlog the largest stays; what was not looked at is not zero."""
        rows = [
            row(5 * MINUTE + 1, done=1, backlog=3),
            row(5 * MINUTE + 2, done=2, backlog=7),
            row(6 * MINUTE, done=4),
        ]
        found = [(one["level"], one["starts_at"], one["done"], one["backlog"]) for one in merged(rows)]
        assert found == [(MINUTES, 5 * MINUTE, 3, 7), (MINUTES, 6 * MINUTE, 4, None)]

    def test_series_are_kept_apart(self) -> None:
        other: HistoryRow = {**row(1, done=1), "type": "refunded"}
        assert sorted(one["type"] for one in merged([row(1, done=1), other])) == ["paid", "refunded"]

    def test_the_largest_of_nothing_is_nothing(self) -> None:
        assert (largest([None, None]), largest([None, 0, 2])) == (None, 2)
