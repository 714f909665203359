"""A body that comes again under another unsigned id is known; of equal bodies the first is recorded first."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceward.message import Delivery
from onceward.steps.first_seen import ECHO, check_first_seen
from tests.unit.builders import context, delivery
from tests.unit.script import Script, Turns

if TYPE_CHECKING:
    import pytest

HERE = context()


def asking(name: str, text: str = "same") -> Delivery:
    return delivery(id=name, data={"text": text}, echo_window=60.0)


def run(*deliveries: Delivery, first: list[str]) -> tuple[Script, list[Delivery]]:
    script = Script({"first_seen": Turns(*[[(name,)] for name in first]), "forget_first_seen": []})
    return script, [*script.run(check_first_seen(HERE, HERE.cache, deliveries))]


def test_who_does_not_ask_costs_nothing() -> None:
    script, marked = run(delivery(), first=[""])
    assert (marked, script.transactions) == ([delivery()], [])


def test_the_first_is_not_marked() -> None:
    """Recorded, and what is older than its window goes, in one transaction."""
    script, marked = run(asking("e1"), first=["e1"])
    assert marked == [asking("e1")]
    assert script.transactions == ["begin first_seen forget_first_seen commit"]
    assert script.params("forget_first_seen") == [{"source": 2, "window": 60.0}]


def test_a_body_that_came_under_another_id_is_marked_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """It stays a message of its own, at its place in the batch."""
    caplog.set_level(logging.WARNING)
    _, marked = run(asking("e0", "a"), delivery(id="plain"), asking("e9", "b"), first=["e0", "e0"])
    late = {one.id: one.headers.get(ECHO) for one in marked}
    assert [one.id for one in marked] == ["e0", "plain", "e9"]
    assert sorted(filter(None, late.values())) == ["e0"]
    assert "came before as message e0" in caplog.text


def test_bodies_are_recorded_in_one_order() -> None:
    """Whatever the order of the batch, so that batches which overlap cannot deadlock."""
    orders = []
    for names in (("x", "y"), ("y", "x")):
        script, _ = run(*(asking(name, name) for name in names), first=["x", "y"])
        orders.append([row["hash"] for row in script.params("first_seen")])
    assert orders[0] == orders[1] == sorted(orders[0])
