"""What a process has seen happen is counted by series, until it is written into the history."""

from __future__ import annotations

from onceward.domain.activity import Activity, Series

PAID = Series("shop", "stripe", "paid")


def test_what_happened_to_a_group_is_counted_at_once() -> None:
    activity = Activity(kept=True)
    activity.count("done", PAID, 3, seconds=[0.5, 0.5, 4.0], waited=[2.0])
    activity.count("done", PAID, seconds=[0.5])
    activity.count("duplicate", PAID, 2, seconds=[60.0, 90.0])
    activity.count("dead", PAID)
    activity.count("failed", PAID)
    activity.count("spooled", PAID)
    ((series, counts),) = activity.take(0.0).items()
    assert series == PAID
    assert (counts.done, counts.run.count, counts.wait.count) == (4, 4, 1)
    assert (counts.duplicates, counts.lateness.count) == (2, 2)
    assert (counts.failed, counts.dead, counts.received) == (2, 1, 0)
    assert activity.is_empty


def test_series_are_counted_apart() -> None:
    activity = Activity(kept=True)
    activity.count("done", PAID, 2)
    activity.count("done", PAID._replace(type="refunded"))
    counts = activity.take(0.0)
    assert {series: one.done for series, one in counts.items()} == {PAID: 2, PAID._replace(type="refunded"): 1}


def test_what_could_not_be_written_is_counted_with_what_comes_next() -> None:
    activity = Activity(kept=True)
    activity.count("done", PAID, 2, seconds=[0.5, 0.5])
    taken = activity.take(0.0)
    activity.count("done", PAID, seconds=[0.5])
    activity.give_back(taken)
    (counts,) = activity.take(0.0).values()
    assert (counts.done, counts.run.count) == (3, 3)


def test_a_process_without_a_history_counts_nothing() -> None:
    activity = Activity()
    activity.count("done", PAID)
    assert activity.is_empty
