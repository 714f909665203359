"""The figures on the page are those of the recorded run."""

from __future__ import annotations

import json

from bench.redis import PAGE, RECORD, with_table


def test_the_table_is_made_from_the_record() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)


def test_an_inbox_costs_at_most_twice_what_it_takes_by_hand() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    for name in ("receive", "drain"):
        assert found[name]["onceward"] >= found[name]["by_hand"] / 2
