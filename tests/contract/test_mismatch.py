"""One id, two bodies: never run, never overwritten, always visible, decided by a person (R07, HZ-10, HZ-11; I11)."""

from __future__ import annotations

from typing import Any

from onceward.admin.messages import Mismatch
from onceward.flow import Query, run_sync
from onceward.message import Delivery
from onceward.steps import operate
from onceward.steps.receive import receive
from tests.contract.behaviour import raising, returning
from tests.contract.harness import Shop, in_threads

FIRST = {"order": 7, "amount": {"value": 10, "currency": "EUR"}}
OTHER = {"order": 7, "amount": {"value": 99, "currency": "EUR"}, "vip": True}


def only_case(shop: Shop) -> Mismatch:
    (case,) = shop.inbox.admin.quarantine()
    return case


def quarantined(shop: Shop, message_id: str = "m1") -> int:
    """A message that ran, and an open case about other bytes under its id."""
    shop.receive(message_id, data=FIRST)
    shop.drain()
    assert shop.receive(message_id, data=OTHER).status == "mismatch"
    return only_case(shop).case


def test_other_bytes_never_run_and_never_overwrite(shop: Shop) -> None:
    """R07: before or after the first copy ran, stored or inline, other bytes go to quarantine and nowhere else."""
    shop.handle()
    ids = [f"{how} {when}" for how in ("receive", "process") for when in ("before", "after")]
    for message_id in ids:
        how, when = message_id.split()
        first = shop.receive(message_id, data=FIRST)
        before = shop.story(message_id)
        if when == "after":
            shop.drain()
        other = getattr(shop, how)(message_id, data=OTHER)
        shop.drain()
        assert (other.status, other.seq, other.finished, other.result) == ("mismatch", first.seq, False, None)
        assert (shop.story(message_id).body, shop.story(message_id).hash) == (before.body, before.hash)
    assert shop.effects() == sorted(ids)
    assert [case.id for case in shop.inbox.admin.quarantine()] == ids


def test_other_bytes_are_counted_per_body(shop: Shop) -> None:
    """R07: one case per id and body, however many copies came; the first copy's own duplicates are none of it."""
    shop.handle()
    for data in (FIRST, OTHER, OTHER, FIRST, {"third": 1}):
        shop.receive("m1", data=data)
    cases = shop.inbox.admin.quarantine()
    assert [(case.id, case.source, case.copies) for case in cases] == [("m1", "stripe", 2), ("m1", "stripe", 1)]
    assert (shop.inbox.admin.stats().quarantined, shop.inbox.admin.stats().duplicates) == (2, 1)


def test_only_the_bytes_decide(shop: Shop) -> None:
    """R07, HZ-11: the raw bytes are compared, not what they mean; headers are no part of them."""
    shop.receive("m1", body=b'{"a":1}', headers={"try": "1"})
    assert shop.receive("m1", body=b'{"a":1}', headers={"try": "2"}).status == "duplicate"
    for same_meaning in (b'{"a": 1}', b'{"a":1.0}', b'{"a":1}\n'):
        assert shop.receive("m1", body=same_meaning).status == "mismatch"


def test_a_case_shows_what_differs(shop: Shop) -> None:
    """R07: field by field, with both bodies at hand."""
    shop.handle()
    quarantined(shop)
    case = only_case(shop)
    assert case.differences == (("amount.value", 10, 99), ("vip", "(missing)", True))
    assert case.first_body is not None
    assert (b'"value":10' in case.first_body, b'"value":99' in case.other_body) == (True, True)
    assert case.first_hash != case.other_hash


def test_a_case_can_be_read_whatever_its_bytes_are(shop: Shop) -> None:
    """R07, HZ-66: bodies that are not JSON are compared as a whole, and kept as they are."""
    bodies = [b"", b"{", b"\xff\xfe\x00", b'{"a":1,"a":2}', b"[" * 100_000]
    shop.receive("m1", data=FIRST)
    assert [shop.receive("m1", body=body).status for body in bodies] == ["mismatch"] * len(bodies)
    cases = shop.inbox.admin.quarantine()
    assert [case.other_body for case in cases] == bodies
    assert [len(case.differences) for case in cases] == [1] * len(bodies)


def test_a_body_that_was_not_kept_still_tells_copies_from_mismatches(shop: Shop) -> None:
    """R03, R07: the hash outlives the body."""
    shop.handle(keep_body=False)
    quarantined(shop)
    assert shop.receive("m1", data=FIRST).status == "duplicate"
    case = only_case(shop)
    assert (case.first_body, case.differences) == (None, ())


def test_keep_first_makes_later_copies_duplicates_of_the_first(shop: Shop) -> None:
    """R07: decided once, the same bytes are never asked about again and never run."""
    shop.handle(behaviour=returning("first"))
    case = quarantined(shop)
    assert shop.inbox.admin.resolve(case, "keep-first", reason="resent by mistake", actor="ann") == shop.seqs["m1"]
    again = shop.receive("m1", data=OTHER)
    shop.drain()
    assert (again.status, again.seq, again.finished, again.result) == ("duplicate", shop.seqs["m1"], True, "first")
    assert (shop.effects(), shop.inbox.admin.quarantine()) == (["m1"], [])
    assert [(a.action, a.actor, a.reason) for a in shop.story("m1").actions] == [
        ("keep-first", "ann", "resent by mistake")
    ]


def test_accept_as_new_runs_the_other_body_once(shop: Shop) -> None:
    """R07: the other body becomes a message of its own, and later copies of it are its duplicates."""
    shop.handle(behaviour=returning("ran"))
    case = quarantined(shop)
    new = shop.inbox.admin.resolve(case, "accept-as-new", reason="both are real")
    assert new is not None
    assert new != shop.seqs["m1"]
    assert shop.receive("m1", data=OTHER).status == "duplicate"
    shop.drain()
    again = shop.receive("m1", data=OTHER)
    shop.drain()
    assert (again.status, again.seq, again.finished, again.result) == ("duplicate", new, True, "ran")
    assert len(shop.effects()) == 2
    assert shop.story(new).body == b'{"amount":{"currency":"EUR","value":99},"order":7,"vip":true}'
    assert shop.receive("m1", data=FIRST).status == "duplicate"


def test_discard_forgets_the_body_and_asks_again(shop: Shop) -> None:
    """R07: nothing is kept of it, so the same bytes open a new case."""
    shop.handle()
    case = quarantined(shop)
    assert shop.inbox.admin.resolve(case, "discard") == shop.seqs["m1"]
    assert shop.inbox.admin.quarantine() == []
    assert (shop.status("m1"), shop.inbox.admin.stats().discarded) == ("done", 0)
    assert shop.receive("m1", data=FIRST).finished
    assert shop.receive("m1", data=OTHER).status == "mismatch"
    assert only_case(shop).case != case
    assert shop.effects() == ["m1"]


def test_a_case_is_decided_once(shop: Shop) -> None:
    """R07, I13: the second decision changes nothing and leaves no line in the audit."""
    resolutions: list[Any] = ["keep-first", "accept-as-new", "discard"]
    shop.handle()
    for resolution in resolutions:
        case = quarantined(shop, resolution)
        assert shop.inbox.admin.resolve(case, resolution) is not None
        assert [shop.inbox.admin.resolve(case, other) for other in resolutions] == [None] * 3
        written = "discard-mismatch" if resolution == "discard" else resolution
        assert [action.action for action in shop.story(resolution).actions] == [written]
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
                if isinstance(request, Query) and request.name == "quarantined":
                    assert shop.inbox.admin.resolve(case, "accept-as-new", reason="first") is not None
                return answer

            flow = operate.resolve(shop.inbox.context, case, "keep-first", actor="late", reason="second")
            assert run_sync(flow, perform) is None
        assert shop.sql("SELECT resolution FROM onceward_quarantine") == [("accept-as-new",)]
        assert [line.reason for line in shop.inbox.admin.audit()] == ["first"]
        shop.drain()


def test_a_case_is_decided_where_nothing_was_received(shop: Shop) -> None:
    """R07: an operator's process has seen neither the source nor the newest subscriptions, and still accepts."""
    operator = shop.another()
    operator.receive("unrelated", "other.type", source="elsewhere")  # it knows the inbox as of now
    shop.handle()
    case = quarantined(shop)
    new = operator.inbox.admin.resolve(case, "accept-as-new")
    assert new is not None
    assert new != shop.seqs["m1"]
    shop.drain()
    assert len(shop.effects()) == 2
    assert shop.receive("m1", data=OTHER).seq == new


def test_other_bodies_of_long_ids_are_accepted_apart(shop: Shop) -> None:
    """R07, HZ-12: ids of the full length that differ in their last character only, both with the same other body."""
    stems = [letter * (1020 // len(letter.encode())) for letter in ("x", "\u00e9", "\U0001f600")]
    shop.handle()
    for message_id in [stem + last for stem in stems for last in "ab"]:
        shop.receive(message_id, data=FIRST)
        assert shop.receive(message_id, data=OTHER).status == "mismatch"
    numbers = [shop.inbox.admin.resolve(case.case, "accept-as-new") for case in shop.inbox.admin.quarantine()]
    shop.drain()
    assert len({*shop.seqs.values(), *numbers}) == 12
    assert len(shop.effects()) == 12


def test_a_mismatch_leaves_a_failing_message_alone(shop: Shop) -> None:
    """R07: other bytes change nothing about the retries of the first."""
    shop.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=1))
    shop.receive("m1", data=FIRST)
    shop.drain()
    shop.receive("m1", data=OTHER)
    assert (shop.status("m1"), shop.story("m1").attempts) == ("retrying", 1)
    shop.finish()
    assert shop.effects() == ["m1"]


def test_each_consumer_compares_for_itself(shop: Shop) -> None:
    """R02, R07: other bytes run for no consumer."""
    shop.handle(consumer="billing")
    shop.handle(consumer="stock")
    shop.receive("m1", data=FIRST)
    assert shop.receive("m1", data=OTHER).status == "mismatch"
    shop.drain()
    assert shop.notes() == [("m1", "billing"), ("m1", "stock")]
    assert sorted(case.consumer for case in shop.inbox.admin.quarantine()) == ["billing", "stock"]


def test_a_case_follows_its_message_to_another_consumer(shop: Shop) -> None:
    """R07, I11: other bytes came while nobody knew the type; they can still be decided about when others take it up."""
    shop.receive("m1", data=FIRST)
    for _ in range(2):
        assert shop.receive("m1", data=OTHER).status == "mismatch"
    assert shop.receive("m1", data=FIRST).status == "duplicate"
    later = shop.another()
    later.handle(consumer="billing")
    later.drain()
    case = only_case(shop)
    (row,) = shop.inbox.admin.messages()
    assert (case.consumer, case.copies, shop.story(row.seq).duplicates) == ("billing", 2, 1)
    assert later.receive("m1", data=OTHER).status == "mismatch"
    assert only_case(shop).copies == 3
    assert later.inbox.admin.resolve(case.case, "accept-as-new") is not None
    later.drain()
    assert len(shop.effects()) == 2
    assert later.receive("m1", data=OTHER).finished


def test_a_decision_follows_its_message_to_another_consumer(shop: Shop) -> None:
    """R07: what was accepted while nobody knew the type is what later copies are duplicates of."""
    shop.receive("m1", data=FIRST)
    shop.receive("m1", data=OTHER)
    assert shop.inbox.admin.resolve(only_case(shop).case, "accept-as-new", actor="ann") is not None
    later = shop.another()
    later.handle(consumer="billing", behaviour=returning("ran"))
    later.drain()
    again = later.receive("m1", data=OTHER)
    assert (again.status, again.finished, again.result) == ("duplicate", True, "ran")
    first = next(row for row in shop.inbox.admin.messages() if row.id == "m1")
    assert [(one.actor, one.action) for one in shop.story(first.seq).actions] == [("ann", "accept-as-new")]
    assert (len(shop.effects()), shop.inbox.admin.quarantine()) == (2, [])


def test_what_waited_is_not_lost_behind_other_bytes(shop: Shop) -> None:
    """I1, I11: the id waited with two services, under other bytes with each, before its type became known."""
    shop.receive("m1", data=FIRST)
    later = shop.another(service="billing")
    assert later.receive("m1", data=OTHER).status == "accepted"
    later.handle()
    later.drain()
    assert shop.effects() == ["m1"]
    assert b'"value":10' in only_case(shop).other_body


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


def test_another_type_or_version_is_never_a_duplicate(shop: Shop) -> None:
    """D05: the same bytes under another type are a case of their own, stored or inline, also without the first body."""
    shop.handle("order.created", keep_body=False)
    shop.handle("order.paid")
    assert shop.receive("order-9", "order.created", data=FIRST).status == "accepted"
    shop.drain()
    assert shop.receive("order-9", "order.paid", data=FIRST).status == "mismatch"
    assert shop.process("order-9", "order.created", version=2, data=FIRST).status == "mismatch"
    assert shop.receive("order-9", "order.paid", data=OTHER).status == "mismatch"
    assert shop.receive("order-9", "order.created", data=FIRST).status == "duplicate"
    found = [(case.kind, case.type, case.version, case.first_type) for case in shop.inbox.admin.quarantine()]
    assert found == [
        ("type", "order.paid", 1, "order.created"),
        ("type", "order.created", 2, "order.created"),
        ("body", "order.paid", 1, "order.created"),
    ]
    explained = shop.inbox.admin.explain(shop.seqs["order-9"])
    assert explained is not None
    told = [event.what for event in explained.events if event.kind == "mismatch"]
    assert [what.partition(" (")[0] for what in told] == [
        "the id came as order.paid version 1",
        "the id came as order.created version 2",
        "the id came with other bytes",
    ]
    accepted = {shop.inbox.admin.resolve(case.case, "accept-as-new") for case in shop.inbox.admin.quarantine()}
    shop.drain()
    assert len(accepted) == 3
    assert shop.receive("order-9", "order.paid", data=FIRST).status == "duplicate"
    assert len(shop.effects()) == 3  # version 2 has no handler


def test_a_type_that_is_called_otherwise_is_decided_in_bulk(shop: Shop) -> None:
    """D05: one decision for all cases of a source in which only the type differs; other bytes stay open."""
    shop.handle("paid")
    shop.handle("order.paid")
    for number in range(3):
        shop.receive(f"m{number}", "paid", data=FIRST)
        shop.receive(f"m{number}", "order.paid", data=FIRST)
    shop.receive("m1", "order.paid", data=OTHER)
    decide = {"source": "stripe", "type": "order.paid", "reason": "renamed", "actor": "ann"}
    assert shop.inbox.admin.keep_first(**{**decide, "source": "paypal"}) == 0
    assert [shop.inbox.admin.keep_first(**decide) for _ in range(2)] == [3, 0]
    assert [case.kind for case in shop.inbox.admin.quarantine()] == ["body"]
    assert [(a.action, a.actor, a.reason) for a in shop.story("m1").actions] == [("keep-first", "ann", "renamed")]
    again = [shop.receive(f"m{number}", "order.paid", data=FIRST).status for number in range(3)]
    shop.drain()
    assert (again, shop.effects()) == (["duplicate"] * 3, ["m0", "m1", "m2"])


def test_accept_as_new_keeps_its_key_and_position(shop: Shop) -> None:
    """D12: what the caller said about the second body holds when it becomes a message."""
    shop.handle(key="k", key_required=False)
    shop.receive("m1", data=FIRST, key="a", position=3)
    shop.receive("m1", data=OTHER, key="b", position=4)
    new = shop.inbox.admin.resolve(only_case(shop).case, "accept-as-new")
    where = f"FROM {shop.prefix}queue q JOIN {shop.prefix}body b ON b.seq = q.seq WHERE q.seq = {new}"
    assert [tuple(row) for row in shop.sql(f"SELECT b.key, q.place, b.position {where}")] == [("b", 4, 4)]
