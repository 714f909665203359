"""What `process` and `receive` say became of a message, and that it is what the database says (D47)."""

from __future__ import annotations

import pytest

from onceward import Failure
from onceward.testing.store_suite.outcomes import Refused
from tests.contract.behaviour import raising, returning
from tests.contract.harness import QUICK, Kind, Shop


@pytest.mark.parametrize("after_crash", [False, True])
def test_a_caller_may_have_the_exception_itself(store_url: str, kind: Kind, *, after_crash: bool) -> None:
    """It is the object that the handler raised, and the message is stored by then; also where it is stored first."""
    with Shop(store_url, kind, settings=QUICK) as shop:
        if after_crash:
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
