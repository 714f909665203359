"""Order by the position in the source, where one is given (R17; HZ-43)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.contract.harness import LATER, Shop, arguments
from tests.order.background import meanwhile
from tests.order.conftest import on_every_store
from tests.order.ledger import (
    TYPES,
    Clerk,
    Marks,
    assert_each_saw_its_predecessors,
    handle_all,
    journal,
    receive,
    statuses,
)
from tests.waiting import wait_until


@on_every_store
def test_messages_of_a_key_run_by_position(shop: Shop, clerk: Clerk, marks: Marks) -> None:
    """Received in any order while nobody works, each key runs by position, across types."""
    handle_all(shop, clerk)
    places = [(key, position) for key in "ab" for position in range(20)]
    random.shuffle(places)
    shop.receive_many(
        arguments(
            f"{key}{position}", TYPES[position % 3], more={"data": {"k": key}, "position": 1000 * (position - 10)}
        )
        for key, position in places
    )
    shop.drain()
    for key in "ab":
        assert journal(shop, key) == [f"{key}{position}" for position in range(20)]
    assert marks.overlaps() == []
    assert_each_saw_its_predecessors(shop)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_backlog_larger_than_a_group_runs_by_position(shop: Shop, clerk: Clerk, marks: Marks, lanes: int) -> None:
    """The first by position may be the last to have come, many groups later; a drain finds it and handles them all."""
    handle_all(shop, clerk, group=10)
    shop.receive_many(
        arguments(f"m{position}", "opened", more={"data": {"k": "k"}, "position": position})
        for position in reversed(range(45))
    )
    assert shop.drain(concurrency=lanes) == 45
    assert journal(shop) == [f"m{position}" for position in range(45)]
    assert marks.overlaps() == []


def test_equal_positions_run_in_arrival_order(shop: Shop, clerk: Clerk) -> None:
    """Two sources may count alike."""
    handle_all(shop, clerk)
    for position, message_id in ((2, "m3"), (1, "m1"), (1, "m2"), (2, "m4")):
        receive(shop, message_id, position=position)
    shop.drain()
    assert journal(shop) == ["m1", "m2", "m3", "m4"]


def test_a_late_lower_position_goes_before_what_is_unfinished(shop: Shop, clerk: Clerk) -> None:
    """HZ-43: an old batch that comes late overtakes a head that backs off, and what waits behind it."""
    handle_all(shop, clerk, retry=LATER)
    receive(shop, "m3", position=30)
    receive(shop, "m5", position=50, data={"fail": 1})
    receive(shop, "m6", position=60)
    shop.drain()
    assert statuses(shop, ["m3", "m5", "m6"]) == {"m3": "done", "m5": "retrying", "m6": "waiting"}
    receive(shop, "m4", position=40)
    shop.drain()
    assert journal(shop) == ["m3", "m4"]
    receive(shop, "m1", position=10)
    shop.finish()
    assert journal(shop) == ["m3", "m4", "m1", "m5", "m6"]


def test_a_late_lower_position_does_not_run_beside_a_higher_one(
    postgres_shop: Shop, clerk: Clerk, marks: Marks, tmp_path: Path
) -> None:
    """HZ-43: it comes while a higher one is inside its handler."""
    shop = postgres_shop
    handle_all(shop, Clerk(marks, str(tmp_path), victim=True))
    other = shop.another()
    handle_all(other, clerk)
    receive(shop, "m2", position=2, data={"hold": "before"})
    with meanwhile(shop.inbox.drain):
        wait_until(marks.inside, message="the higher one inside its handler")
        receive(other, "m1", position=1)
        receive(other, "m3", position=3)
        assert other.drain() == 0
        (tmp_path / "release").touch()
    shop.drain()
    assert journal(shop) == ["m2", "m1", "m3"]
    assert marks.overlaps() == []


def test_a_failure_inside_a_group_keeps_the_order_by_position(shop: Shop, clerk: Clerk) -> None:
    """R17, HZ-51: the head of the group fails once; whatever is run again runs by position, not by arrival."""
    handle_all(shop, clerk)
    for position in (5, 3, 4, 2, 1):
        receive(shop, f"m{position}", position=position, data={"fail": int(position in {1, 3})})
    shop.finish()
    assert journal(shop) == ["m1", "m2", "m3", "m4", "m5"]
    assert_each_saw_its_predecessors(shop)


def test_an_inline_message_that_failed_keeps_its_position(shop: Shop, clerk: Clerk) -> None:
    """R03, R17: stored for retry, it still comes after a lower position that arrives later."""
    handle_all(shop, clerk, retry=LATER)
    data = {"k": "k", "fail": 1}
    assert not shop.process("m2", "opened", data=data, position=2).finished
    receive(shop, "m3", position=3)
    receive(shop, "m1", position=1)
    shop.finish()
    assert journal(shop) == ["m1", "m2", "m3"]


@pytest.mark.parametrize("consumer", ["default", "elsewhere"])
def test_positions_are_kept_until_somebody_handles_the_type(shop: Shop, clerk: Clerk, consumer: str) -> None:
    """R17: messages that nobody handled yet run by position too, whoever takes them up."""
    for position in (3, 1, 2):
        receive(shop, f"m{position}", position=position)
    newer = shop.another()
    handle_all(newer, clerk, consumer=consumer)
    newer.drain()
    assert journal(shop) == ["m1", "m2", "m3"]
