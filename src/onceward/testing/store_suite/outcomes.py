"""Receipts say what became of a message."""

from __future__ import annotations

from onceward import Failure, Message, Reject
from onceward.testing.store_suite.behaviour import Steps, raising, returning, wrote
from onceward.testing.store_suite.shop import Shop


class Refused(Exception):
    """A class of the program's own, with more than a text."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused with {code}")
        self.code = code


class Outcomes:
    """Receipts say what became of a message."""

    def test_every_outcome_of_a_message(self, shop: Shop) -> None:
        """Failed, queued and dead are told apart, with the error of the handler."""
        shop.handle("good", behaviour=returning(1))
        shop.handle("keyed", key="k")
        shop.handle("failing", behaviour=raising(lambda: Refused(3), attempts=1))
        shop.handle("refusing", behaviour=raising(lambda: Reject("never")))
        assert shop.receive("stored", "good").outcome == "queued"
        done = shop.process("done", "good")
        assert (done.outcome, done.error) == ("done", None)
        assert shop.process("done", "good").outcome == "duplicate"
        assert shop.process("done", "good", data="other").outcome == "mismatch"
        assert shop.receive("done", "good").outcome == "duplicate"
        shop.receive("head", "keyed", data={"k": 1})
        behind = shop.process("behind", "keyed", data={"k": 1})
        assert (behind.outcome, behind.error) == ("queued", None)
        assert shop.process("n1", "unknown type").outcome == "queued"
        failed = shop.process("failed", "failing")
        assert (failed.outcome, failed.error) == ("retrying", Failure("Refused", "refused with 3"))
        dead = shop.process("dead", "refusing")
        assert (dead.outcome, dead.error) == ("dead", Failure("Reject", "never", final=True))
        assert shop.process("unreadable", "good", body=b"{").outcome == "dead"
        assert [shop.status(one) for one in ("failed", "dead", "unreadable")] == ["retrying", "dead", "dead"]
        shop.finish()

    def test_of_several_consumers_the_one_that_needs_a_person_counts(self, shop: Shop) -> None:
        """Dead before retrying, both before queued, and done only when all are."""
        behaviour: dict[str, Exception | None] = {"a": None, "b": None}

        def as_told(message: Message) -> Steps:
            yield wrote(message)
            if error := behaviour[message.consumer]:
                raise error

        for consumer in behaviour:
            shop.handle(consumer=consumer, behaviour=as_told)
        assert shop.process("m1").outcome == "done"
        behaviour["a"] = RuntimeError("not yet")
        assert shop.process("m2").outcome == "retrying"
        behaviour["b"] = Reject("never")
        dead = shop.process("m3")
        assert (dead.outcome, dead.error) == ("dead", Failure("Reject", "never", final=True))
        behaviour["a"] = behaviour["b"] = None
        shop.finish()
