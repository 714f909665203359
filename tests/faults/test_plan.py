"""The same seed makes the same plan, and it is what the page says (R70)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from faults import plan
from faults.plan import FULL, QUICK


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan.make(7, FULL) == plan.make(7, FULL)
    assert plan.make(7, FULL) != plan.make(8, FULL)


@pytest.mark.parametrize("scale", [FULL, QUICK, replace(FULL, messages=600)])
def test_a_plan_has_what_was_asked_for(scale: plan.Scale) -> None:
    made = plan.make(70, scale)
    kinds = Counter(payment.kind for payment in made.payments)
    assert len(made.payments) == len({payment.id for payment in made.payments}) == scale.messages
    assert (kinds["raises once"], kinds["poison"], kinds["killer"]) == (scale.raises, scale.poisons, 1)
    faults = Counter(strike.fault for strike in made.strikes)
    assert faults == {"kill": scale.kills, "restart": scale.restarts, "suspend": scale.suspensions}
    copies = Counter(
        delivery.payment.id for delivery in made.deliveries for _ in range(1 + (delivery.how == "at once"))
    )
    twice = sum(count == 2 for count in copies.values())
    assert set(copies.values()) == {1, 2}
    assert abs(twice - scale.messages * plan.TWICE) <= 1
    assert made.copies == scale.messages + twice
    assert copies[made.killer.id] == 1
    assert any(delivery.how == "at once" for delivery in made.deliveries)


def test_payments_of_an_account_come_in_their_order() -> None:
    latest: dict[str, int] = {}
    for delivery in plan.make(70, FULL).deliveries:
        if delivery.how != "again":
            assert delivery.payment.position == latest.get(delivery.payment.account, 0) + 1
            latest[delivery.payment.account] = delivery.payment.position


def test_what_makes_trouble_for_ever_has_accounts_of_its_own() -> None:
    shared = Counter(payment.account for payment in plan.make(70, FULL).payments)
    assert all(shared[payment.account] == 1 for payment in plan.make(70, FULL).payments if not payment.books)


def test_too_few_messages_are_refused() -> None:
    with pytest.raises(ValueError, match="30 messages are too few for 26"):
        plan.make(1, replace(FULL, messages=30))


def test_a_database_that_is_no_server_is_not_restarted() -> None:
    without = plan.without_restarts(plan.make(70, FULL))
    assert {strike.fault for strike in without.strikes} == {"kill", "suspend"}


def test_deliveries_survive_their_file(tmp_path: Path) -> None:
    deliveries = plan.make(70, QUICK).deliveries
    plan.write(tmp_path / "deliveries", deliveries)
    assert plan.read(tmp_path / "deliveries") == deliveries
