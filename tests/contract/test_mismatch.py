"""One id, two bodies: never run, never overwritten, always visible, decided by a person (R07, HZ-10, HZ-11; I11)."""

from __future__ import annotations

from typing import Any

from onceward.flow import Query, run_sync
from onceward.message import Delivery
from onceward.steps import operate
from onceward.steps.receive import receive
from onceward.testing.store_suite.mismatches import FIRST, OTHER, only_case, quarantined
from tests.contract.harness import Shop, in_threads


def test_a_case_is_decided_once(shop: Shop) -> None:
    """R07, I13: the second decision changes nothing and leaves no line in the audit."""
    resolutions: list[Any] = ["keep-first", "accept-as-new", "discard"]
    shop.handle()
    for resolution in resolutions:
        case = quarantined(shop, resolution)
        assert shop.inbox.admin.resolve(case, resolution) is not None
        assert [shop.inbox.admin.resolve(case, other) for other in resolutions] == [None] * 3
        written = "discard-mismatch" if resolution == "discard" else resolution
        assert [action.action for action in shop.detail(resolution).actions] == [written]
    assert shop.inbox.admin.resolve(999_999, "discard") is None
    assert shop.count("ledger") == 4


def test_two_operators_cannot_decide_differently(shop: Shop) -> None:
    """R07, HZ-55: of decisions made at the same time, one counts."""
    shop.handle()
    case = quarantined(shop)
    answers = in_threads(*(lambda: shop.inbox.admin.resolve(case, "accept-as-new") for _ in range(4)))
    assert len([answer for answer in answers if answer is not None]) == 1
    assert (shop.count("ledger"), shop.count("audit")) == (2, 1)


def test_a_decision_that_comes_between_counts(postgres_url: str) -> None:
    """R07, HZ-55: of two that both saw an open case, the second changes nothing. On SQLite one waits for the other."""
    with Shop(postgres_url, "def") as shop:
        shop.handle()
        case = quarantined(shop)
        with shop.inbox.store.session() as session:

            def perform(request: Any) -> Any:
                answer = session.perform(request)
                parts = request if isinstance(request, tuple) else (request,)
                if any(isinstance(part, Query) and part.name == "quarantined" for part in parts):
                    assert shop.inbox.admin.resolve(case, "accept-as-new", reason="first") is not None
                return answer

            flow = operate.resolve(shop.inbox.context, case, "keep-first", actor="late", reason="second")
            assert run_sync(flow, perform) is None
        assert shop.sql("SELECT resolution FROM onceward_quarantine") == [("accept-as-new",)]
        assert [line.reason for line in shop.inbox.admin.audit()] == ["first"]
        shop.drain()


def test_no_case_is_opened_under_a_number_that_is_gone(shop: Shop) -> None:
    """I11: a fan-out replaces the row between a receiver's look at it and its case."""
    shop.receive("m1", data=FIRST)
    later = shop.another()
    later.handle(consumer="billing")
    context = shop.inbox.context
    delivery = Delivery.of(source="stripe", id="m1", type="order.paid", data=OTHER)

    with shop.inbox.store.session() as session:

        def perform(request: Any) -> Any:
            if isinstance(request, tuple) and any(
                isinstance(one, Query) and one.name == "quarantine" for one in request
            ):
                later.drain()
            return session.perform(request)

        (receipt,) = run_sync(receive(context, context.cache, [delivery]), perform)
    assert receipt.status == "mismatch"
    assert only_case(shop).consumer == "billing"


def test_accept_as_new_keeps_its_key_and_position(shop: Shop) -> None:
    """D12: what the caller said about the second body holds when it becomes a message."""
    shop.handle(key="k", key_required=False)
    shop.receive("m1", data=FIRST, key="a", position=3)
    shop.receive("m1", data=OTHER, key="b", position=4)
    new = shop.inbox.admin.resolve(only_case(shop).case, "accept-as-new")
    where = f"FROM {shop.prefix}queue q JOIN {shop.prefix}body b ON b.seq = q.seq WHERE q.seq = {new}"
    assert [tuple(row) for row in shop.sql(f"SELECT b.key, q.place, b.position {where}")] == [("b", 4, 4)]
