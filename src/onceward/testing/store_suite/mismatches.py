"""One id with other bytes: never run, never overwritten, always visible, decided by an operator."""

from __future__ import annotations

from onceward.admin.messages import Mismatch
from onceward.testing.store_suite.behaviour import raising, returning
from onceward.testing.store_suite.shop import Shop

FIRST = {"order": 7, "amount": {"value": 10, "currency": "EUR"}}


OTHER = {"order": 7, "amount": {"value": 99, "currency": "EUR"}, "vip": True}


def only_case(shop: Shop) -> Mismatch:
    (case,) = shop.inbox.admin.quarantine()
    return case


def quarantined(shop: Shop, message_id: str = "m1") -> int:
    """A message that ran, and an open mismatch about other bytes under its id."""
    shop.receive(message_id, data=FIRST)
    shop.drain()
    assert shop.receive(message_id, data=OTHER).status == "mismatch"
    return only_case(shop).case


class Mismatches:
    """One id with other bytes: never run, never overwritten, always visible, decided by an operator."""

    def test_other_bytes_never_run_and_never_overwrite(self, shop: Shop) -> None:
        """Before or after the first copy ran, stored or inline, other bytes go to quarantine and nowhere else."""
        shop.handle()
        ids = [f"{how} {when}" for how in ("receive", "process") for when in ("before", "after")]
        for message_id in ids:
            how, when = message_id.split()
            first = shop.receive(message_id, data=FIRST)
            before = shop.detail(message_id)
            if when == "after":
                shop.drain()
            other = getattr(shop, how)(message_id, data=OTHER)
            shop.drain()
            assert (other.status, other.seq, other.finished, other.result) == ("mismatch", first.seq, False, None)
            assert (shop.detail(message_id).body, shop.detail(message_id).hash) == (before.body, before.hash)
        assert shop.effects() == sorted(ids)
        assert [case.id for case in shop.inbox.admin.quarantine()] == ids

    def test_other_bytes_are_counted_per_body(self, shop: Shop) -> None:
        """One case per id and body, however many copies came; the first copy's own duplicates are none of it."""
        shop.handle()
        for data in (FIRST, OTHER, OTHER, FIRST, {"third": 1}):
            shop.receive("m1", data=data)
        cases = shop.inbox.admin.quarantine()
        assert [(case.id, case.source, case.copies) for case in cases] == [("m1", "stripe", 2), ("m1", "stripe", 1)]
        assert (shop.inbox.admin.stats().quarantined, shop.inbox.admin.stats().duplicates) == (2, 1)

    def test_only_the_bytes_decide(self, shop: Shop) -> None:
        """The raw bytes are compared, not what they mean; headers are no part of them."""
        shop.receive("m1", body=b'{"a":1}', headers={"try": "1"})
        assert shop.receive("m1", body=b'{"a":1}', headers={"try": "2"}).status == "duplicate"
        for same_meaning in (b'{"a": 1}', b'{"a":1.0}', b'{"a":1}\n'):
            assert shop.receive("m1", body=same_meaning).status == "mismatch"

    def test_a_case_shows_what_differs(self, shop: Shop) -> None:
        """Field by field, with both bodies at hand."""
        shop.handle()
        quarantined(shop)
        case = only_case(shop)
        assert case.differences == (("amount.value", 10, 99), ("vip", "(missing)", True))
        assert case.first_body is not None
        assert (b'"value":10' in case.first_body, b'"value":99' in case.other_body) == (True, True)
        assert case.first_hash != case.other_hash

    def test_a_case_can_be_read_whatever_its_bytes_are(self, shop: Shop) -> None:
        """Bodies that are not JSON are compared as a whole, and kept as they are."""
        bodies = [b"", b"{", b"\xff\xfe\x00", b'{"a":1,"a":2}', b"[" * 100_000]
        shop.receive("m1", data=FIRST)
        assert [shop.receive("m1", body=body).status for body in bodies] == ["mismatch"] * len(bodies)
        cases = shop.inbox.admin.quarantine()
        assert [case.other_body for case in cases] == bodies
        assert [len(case.differences) for case in cases] == [1] * len(bodies)

    def test_a_body_that_was_not_kept_still_tells_copies_from_mismatches(self, shop: Shop) -> None:
        """The hash outlives the body."""
        shop.handle(keep_body=False)
        quarantined(shop)
        assert shop.receive("m1", data=FIRST).status == "duplicate"
        case = only_case(shop)
        assert (case.first_body, case.differences) == (None, ())

    def test_keep_first_makes_later_copies_duplicates_of_the_first(self, shop: Shop) -> None:
        """Decided once, the same bytes are never asked about again and never run."""
        shop.handle(behaviour=returning("first"))
        case = quarantined(shop)
        assert shop.inbox.admin.resolve(case, "keep-first", reason="resent by mistake", actor="ann") == shop.seqs["m1"]
        again = shop.receive("m1", data=OTHER)
        shop.drain()
        assert (again.status, again.seq, again.finished, again.result) == ("duplicate", shop.seqs["m1"], True, "first")
        assert (shop.effects(), shop.inbox.admin.quarantine()) == (["m1"], [])
        assert [(a.action, a.actor, a.reason) for a in shop.detail("m1").actions] == [
            ("keep-first", "ann", "resent by mistake")
        ]

    def test_accept_as_new_runs_the_other_body_once(self, shop: Shop) -> None:
        """The other body becomes a message of its own, and later copies of it are its duplicates."""
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
        assert shop.detail(new).body == b'{"amount":{"currency":"EUR","value":99},"order":7,"vip":true}'
        assert shop.receive("m1", data=FIRST).status == "duplicate"

    def test_discard_forgets_the_body_and_asks_again(self, shop: Shop) -> None:
        """Nothing is kept of it, so the same bytes open a new case."""
        shop.handle()
        case = quarantined(shop)
        assert shop.inbox.admin.resolve(case, "discard") == shop.seqs["m1"]
        assert shop.inbox.admin.quarantine() == []
        assert (shop.status("m1"), shop.inbox.admin.stats().discarded) == ("done", 0)
        assert shop.receive("m1", data=FIRST).finished
        assert shop.receive("m1", data=OTHER).status == "mismatch"
        assert only_case(shop).case != case
        assert shop.effects() == ["m1"]

    def test_a_case_is_decided_where_nothing_was_received(self, shop: Shop) -> None:
        """An operator's process has seen neither the source nor the newest subscriptions, and still accepts."""
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

    def test_other_bodies_of_long_ids_are_accepted_apart(self, shop: Shop) -> None:
        """Ids of the full length that differ in their last character only, both with the same other body."""
        stems = [letter * (1020 // len(letter.encode())) for letter in ("x", "\u00e9", "\U0001f600")]
        shop.handle()
        for message_id in [stem + last for stem in stems for last in "ab"]:
            shop.receive(message_id, data=FIRST)
            assert shop.receive(message_id, data=OTHER).status == "mismatch"
        numbers = [shop.inbox.admin.resolve(case.case, "accept-as-new") for case in shop.inbox.admin.quarantine()]
        shop.drain()
        assert len({*shop.seqs.values(), *numbers}) == 12
        assert len(shop.effects()) == 12

    def test_a_mismatch_leaves_a_failing_message_alone(self, shop: Shop) -> None:
        """Other bytes change nothing about the retries of the first."""
        shop.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=1))
        shop.receive("m1", data=FIRST)
        shop.drain()
        shop.receive("m1", data=OTHER)
        assert (shop.status("m1"), shop.detail("m1").attempts) == ("retrying", 1)
        shop.finish()
        assert shop.effects() == ["m1"]

    def test_each_consumer_compares_for_itself(self, shop: Shop) -> None:
        """Other bytes run for no consumer."""
        shop.handle(consumer="billing")
        shop.handle(consumer="stock")
        shop.receive("m1", data=FIRST)
        assert shop.receive("m1", data=OTHER).status == "mismatch"
        shop.drain()
        assert shop.notes() == [("m1", "billing"), ("m1", "stock")]
        assert sorted(case.consumer for case in shop.inbox.admin.quarantine()) == ["billing", "stock"]

    def test_a_case_follows_its_message_to_another_consumer(self, shop: Shop) -> None:
        """Other bytes came while no consumer knew the type; they can still be decided about when others take it up."""
        shop.receive("m1", data=FIRST)
        for _ in range(2):
            assert shop.receive("m1", data=OTHER).status == "mismatch"
        assert shop.receive("m1", data=FIRST).status == "duplicate"
        later = shop.another()
        later.handle(consumer="billing")
        later.drain()
        case = only_case(shop)
        (row,) = shop.inbox.admin.messages()
        assert (case.consumer, case.copies, shop.detail(row.seq).duplicates) == ("billing", 2, 1)
        assert later.receive("m1", data=OTHER).status == "mismatch"
        assert only_case(shop).copies == 3
        assert later.inbox.admin.resolve(case.case, "accept-as-new") is not None
        later.drain()
        assert len(shop.effects()) == 2
        assert later.receive("m1", data=OTHER).finished

    def test_a_decision_follows_its_message_to_another_consumer(self, shop: Shop) -> None:
        """What was accepted while no consumer knew the type is what later copies are duplicates of."""
        shop.receive("m1", data=FIRST)
        shop.receive("m1", data=OTHER)
        assert shop.inbox.admin.resolve(only_case(shop).case, "accept-as-new", actor="ann") is not None
        later = shop.another()
        later.handle(consumer="billing", behaviour=returning("ran"))
        later.drain()
        again = later.receive("m1", data=OTHER)
        assert (again.status, again.finished, again.result) == ("duplicate", True, "ran")
        first = next(row for row in shop.inbox.admin.messages() if row.id == "m1")
        assert [(one.actor, one.action) for one in shop.detail(first.seq).actions] == [("ann", "accept-as-new")]
        assert (len(shop.effects()), shop.inbox.admin.quarantine()) == (2, [])

    def test_what_waited_is_not_lost_behind_other_bytes(self, shop: Shop) -> None:
        """The id waited with two services, under other bytes with each, before its type became known."""
        shop.receive("m1", data=FIRST)
        later = shop.another(service="billing")
        assert later.receive("m1", data=OTHER).status == "accepted"
        later.handle()
        later.drain()
        assert shop.effects() == ["m1"]
        assert b'"value":10' in only_case(shop).other_body

    def test_another_type_or_version_is_never_a_duplicate(self, shop: Shop) -> None:
        """The same bytes under another type are a case of their own, stored or inline, also without the first body."""
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
        assert [what.partition(", ")[0] for what in told] == [
            "the id came again as order.paid version 1",
            "the id came again as order.created version 2",
            "the id came again with other bytes",
        ]
        accepted = {shop.inbox.admin.resolve(case.case, "accept-as-new") for case in shop.inbox.admin.quarantine()}
        shop.drain()
        assert len(accepted) == 3
        assert shop.receive("order-9", "order.paid", data=FIRST).status == "duplicate"
        assert len(shop.effects()) == 3  # version 2 has no handler

    def test_a_type_that_is_called_otherwise_is_decided_in_bulk(self, shop: Shop) -> None:
        """One decision for all cases of a source in which only the type differs; other bytes stay open."""
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
        assert [(a.action, a.actor, a.reason) for a in shop.detail("m1").actions] == [("keep-first", "ann", "renamed")]
        again = [shop.receive(f"m{number}", "order.paid", data=FIRST).status for number in range(3)]
        shop.drain()
        assert (again, shop.effects()) == (["duplicate"] * 3, ["m0", "m1", "m2"])
