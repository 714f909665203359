"""The time of a pause does not count: neither for the age of a message, nor for the number that it waits for (R64)."""

from __future__ import annotations

from datetime import timedelta

from onceward import RetryPolicy
from tests.contract.behaviour import raising
from tests.contract.harness import Shop

HOUR = 3_600_000_000
AGING = RetryPolicy(attempts=9, first=timedelta(seconds=1), max_age=timedelta(minutes=10), jitter=0)


def an_hour_later(shop: Shop) -> None:
    """Everything that has come, and every pause that has begun, was an hour earlier."""
    shop.sql(f"UPDATE {shop.prefix}body SET received_at = received_at - {HOUR}")
    shop.sql(f"UPDATE {shop.prefix}ledger SET received_at = received_at - {HOUR}")
    shop.sql(f"UPDATE {shop.prefix}pause SET began_at = began_at - {HOUR}")


def test_paused_time_does_not_age_a_message(shop: Shop) -> None:
    """One that failed after a long pause is tried again; one that was as old without a pause is dead."""
    shop.handle("order.paid", raising(lambda: RuntimeError("not yet")), retry=AGING)
    shop.handle("other", raising(lambda: RuntimeError("not yet")), retry=AGING)
    shop.inbox.admin.pause(type="order.paid", reason="a test")
    shop.receive("m1")
    shop.receive("m2", "other")
    an_hour_later(shop)
    shop.inbox.admin.resume(type="order.paid", reason="a test")
    shop.drain()
    assert [shop.status(one) for one in ("m1", "m2")] == ["retrying", "dead"]


def test_a_number_waits_as_long_as_it_would_without_the_pause(shop: Shop) -> None:
    """The deadline of the number before it is put off by the pause, also when that was of the consumer."""
    shop.handle(key="order", sequence="n", gap=timedelta(minutes=10))
    shop.inbox.admin.pause(consumer="default", reason="a test")
    shop.receive("m2", data={"order": 1, "n": 2})
    an_hour_later(shop)
    shop.inbox.admin.resume(consumer="default", reason="a test")
    assert (shop.drain(), shop.status("m2")) == (0, "waiting")
    shop.receive("m1", data={"order": 1, "n": 1})
    assert (shop.drain(), shop.effects()) == (2, ["m1", "m2"])


def test_a_number_that_waited_without_a_pause_is_given_up(shop: Shop) -> None:
    """A pause that was over before it came is of no account."""
    shop.handle(key="order", sequence="n", gap=timedelta(minutes=10))
    shop.inbox.admin.pause(type="order.paid", reason="a test")
    shop.inbox.admin.resume(type="order.paid", reason="a test")
    shop.receive("m2", data={"order": 1, "n": 2})
    shop.sql(f"UPDATE {shop.prefix}body SET received_at = received_at - {HOUR}")
    shop.sql(f"UPDATE {shop.prefix}pause SET began_at = began_at - {9 * HOUR}, ended_at = ended_at - {2 * HOUR}")
    shop.inbox.context.forget()
    shop.drain()
    assert shop.status("m2") == "dead"
