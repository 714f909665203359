"""Inline processing: receive and handle in one transaction."""

from __future__ import annotations

from datetime import timedelta

from onceward import Settings
from onceward.testing.store_suite.behaviour import raising, returning
from onceward.testing.store_suite.shop import Kind, Shop, arguments


class Inline:
    """Inline processing: receive and handle in one transaction."""

    def test_the_same_handler_serves_both_modes(self, shop: Shop) -> None:
        """Stored or inline, one effect and one result."""
        shop.handle(behaviour=returning({"ok": 1}))
        inline = shop.process("m1")
        assert (inline.status, inline.finished, inline.result) == ("accepted", True, {"ok": 1})
        assert shop.effects() == ["m1"]
        shop.receive("m2")
        assert shop.drain() == 1
        for message_id in ("m1", "m2"):
            for ask in (shop.process, shop.receive):
                again = ask(message_id)
                assert (again.status, again.finished, again.result) == ("duplicate", True, {"ok": 1})
        assert shop.effects() == ["m1", "m2"]
        assert (shop.detail("m1").status, shop.detail("m1").duplicates) == ("done", 2)

    def test_a_message_that_is_stored_already_is_not_run_inline(self, shop: Shop) -> None:
        """The process that accepted it first runs it; the second delivery is a duplicate that is not finished yet."""
        shop.handle()
        shop.receive("m1")
        again = shop.process("m1")
        assert (again.status, again.finished, shop.effects()) == ("duplicate", False, [])
        shop.drain()
        assert shop.effects() == ["m1"]

    def test_a_failure_is_stored_with_its_first_attempt(self, shop: Shop) -> None:
        """Acknowledge it; the workers take it from there, so there is no hot loop with the broker."""
        shop.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=1))
        receipt = shop.process("m1", headers={"trace": "ab"}, data={"a": 1})
        assert (receipt.status, receipt.finished, receipt.result) == ("accepted", False, None)
        detail = shop.detail("m1")
        assert (detail.status, detail.attempts, detail.headers, detail.body) == (
            "retrying",
            1,
            {"trace": "ab"},
            b'{"a":1}',
        )
        assert "RuntimeError: not yet" in detail.history[0].error
        assert shop.process("m1", data={"a": 1}).status == "duplicate"
        shop.finish()
        assert (shop.effects(), shop.runs["m1"]) == (["m1"], 2)

    def test_copies_at_the_same_time_have_one_effect(self, shop: Shop) -> None:
        """All but one wait, and are duplicates of a finished message."""
        patient = shop.another(settings=Settings(lock_wait=timedelta(minutes=1)))  # however slow the machine is
        patient.handle(behaviour=returning("result"))
        receipts = patient.at_once("process", [arguments("m1")] * 5)
        assert sorted(receipt.status for receipt in receipts) == ["accepted"] + ["duplicate"] * 4
        assert {(receipt.finished, receipt.result) for receipt in receipts} == {(True, "result")}
        assert (shop.effects(), patient.runs["m1"]) == (["m1"], 1)

    def test_a_process_registers_once(self, shop: Shop) -> None:
        """However many threads or tasks begin to work inline at once, there is one membership, and it leaves."""
        shop.handle()
        shop.at_once("process", [arguments(f"m{number}") for number in range(8)])
        assert [worker.inline for worker in shop.inbox.admin.workers()] == [True]
        assert len(shop.effects()) == 8

    def test_a_duplicate_is_a_duplicate_while_its_key_is_busy(self, shop: Shop) -> None:
        """A redelivery is answered from the ledger, whatever waits in its key."""
        shop.handle(key="k", behaviour=returning("result"))
        shop.process("done before", data={"k": 1})
        shop.receive("head", data={"k": 1})
        assert shop.process("next", data={"k": 1}).status == "accepted"
        again = shop.process("next", data={"k": 1})
        assert (again.status, again.finished) == ("duplicate", False)
        before = shop.process("done before", data={"k": 1})
        assert (before.status, before.finished, before.result) == ("duplicate", True, "result")
        assert shop.process("done before", data={"k": 1, "other": 1}).status == "mismatch"
        shop.drain()
        assert shop.inbox.admin.stats().duplicates == 2

    def test_handlers_of_the_other_kind(self, shop: Shop) -> None:
        """Sync code runs async handlers and the other way round, with the same outcome."""
        other: Kind = "async" if shop.kind == "def" else "def"
        shop.handle(kind=other, behaviour=returning("result"))
        shop.handle("failing", kind=other, behaviour=raising(lambda: RuntimeError("not yet"), attempts=1))
        receipt = shop.process("m1")
        assert (receipt.finished, receipt.result) == (True, "result")
        assert not shop.process("m2", "failing").finished
        shop.finish()
        assert shop.effects() == ["m1", "m2"]

    def test_several_consumers_each_have_their_own_transaction(self, shop: Shop) -> None:
        """One fails, the others are done; of either kind; and one that lives elsewhere gets its row."""
        elsewhere = shop.another()
        elsewhere.handle(consumer="elsewhere")
        elsewhere.drain()
        shop.handle(consumer="good", behaviour=returning("good"))
        shop.handle(consumer="bad", behaviour=raising(lambda: RuntimeError("not yet"), attempts=1))
        shop.handle(consumer="other kind", kind="async" if shop.kind == "def" else "def")
        receipt = shop.process("m1")
        assert (receipt.status, receipt.finished) == ("accepted", False)
        assert shop.notes() == [("m1", "good"), ("m1", "other kind")]
        shop.finish()
        elsewhere.drain()
        assert shop.notes() == [("m1", name) for name in ("bad", "elsewhere", "good", "other kind")]
        assert shop.process("m1").finished
