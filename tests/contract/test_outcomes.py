"""What `process` and `receive` say became of a message, and that it is what the database says (D47)."""

from __future__ import annotations

import pytest

from onceward import Failure, Message, Reject
from tests.contract.behaviour import Steps, raising, returning, wrote
from tests.contract.harness import QUICK, Kind, Shop


class Refused(Exception):
    """A class of the program's own, with more than a text."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused with {code}")
        self.code = code


def test_every_outcome_of_a_message(shop: Shop) -> None:
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
    assert shop.process("nobody", "unknown type").outcome == "queued"
    failed = shop.process("failed", "failing")
    assert (failed.outcome, failed.error) == ("retrying", Failure("Refused", "refused with 3"))
    dead = shop.process("dead", "refusing")
    assert (dead.outcome, dead.error) == ("dead", Failure("Reject", "never", final=True))
    assert shop.process("unreadable", "good", body=b"{").outcome == "dead"
    assert [shop.status(one) for one in ("failed", "dead", "unreadable")] == ["retrying", "dead", "dead"]
    shop.finish()


@pytest.mark.parametrize("careful", [False, True])
def test_a_caller_may_have_the_exception_itself(store_url: str, kind: Kind, *, careful: bool) -> None:
    """It is the object that the handler raised, and the message is stored by then; also where it is stored first."""
    with Shop(store_url, kind, settings=QUICK) as shop:
        if careful:
            with shop.visitor(settings=QUICK) as victim:
                victim.handle("before")
                victim.process("before", "before")
                shop.declare_dead(victim.inbox.admin.workers()[0].process)
        raised = Refused(4)
        for consumer in ("first", "second"):  # the second is run all the same
            shop.handle(consumer=consumer, behaviour=raising(lambda: raised, attempts=1))
        shop.handle("other kind", behaviour=raising(lambda: raised), kind="async" if kind == "def" else "def")
        shop.handle("good", behaviour=returning(1))
        with pytest.raises(Refused) as caught:
            shop.process("m1", raise_on_failure=True)
        assert caught.value is raised
        assert shop.count("queue", "state = 'retry'") == 2
        with pytest.raises(Refused):
            shop.process("m2", "other kind", raise_on_failure=True)
        assert shop.process("m1", raise_on_failure=True).outcome == "duplicate"
        assert shop.process("m3", "good", raise_on_failure=True).outcome == "done"
        failed = shop.process("m4")
        assert (failed.outcome, failed.error) == ("retrying", Failure("Refused", "refused with 4"))
        shop.finish()


def test_of_several_consumers_the_one_that_needs_a_person_counts(shop: Shop) -> None:
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
