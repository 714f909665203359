"""`message.after_commit`: at most once, after the commit of its attempt, and never without one."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from onceward import ContractViolation, Message
from tests.contract.behaviour import Behaviour, Steps, wrote
from tests.contract.harness import Shop


class Calls:
    """What was called after commits, and what the database had in it by then."""

    def __init__(self, shop: Shop) -> None:
        self.made: list[str] = []
        self.early: list[str] = []
        self._shop = shop

    def of(self, message: Message) -> Callable[[], object]:
        """A call for a message; awaited where the handlers are."""

        def call() -> None:
            self.made.append(message.id)
            if message.id not in self._shop.effects():
                self.early.append(message.id)

        async def awaited() -> None:
            call()

        return call if self._shop.kind == "def" else awaited

    def behaviour(self, *, fails: Callable[[Message], bool]) -> Behaviour:
        """One effect and one call for it; then an error, perhaps."""

        def behaviour(message: Message) -> Steps:
            message.after_commit(self.of(message))
            yield wrote(message)
            if fails(message):
                raise ValueError("not this time")

        return behaviour


def test_a_group_calls_for_those_that_it_has_committed(shop: Shop) -> None:
    """One fails in the middle, and those before it run again; each call is made once, after its commit."""
    calls = Calls(shop)
    shop.handle(behaviour=calls.behaviour(fails=lambda message: message.id == "m2" and message.attempt == 1))
    ids = [f"m{number}" for number in range(5)]
    for one in ids:
        shop.receive(one)
    assert shop.drain() == 4
    assert sorted(calls.made) == ["m0", "m1", "m3", "m4"]
    shop.finish()
    assert (sorted(calls.made), calls.early) == (ids, [])


def test_process_calls_when_it_has_committed(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """And what a call raises is logged, for the message is finished."""
    calls = Calls(shop)
    shop.handle("fails", behaviour=calls.behaviour(fails=lambda message: message.attempt == 1))
    shop.handle("works", behaviour=calls.behaviour(fails=lambda _: False))

    def careless(message: Message) -> Steps:
        message.after_commit(lambda: 1 / 0)
        message.after_commit(calls.of(message))
        yield wrote(message)

    shop.handle("careless", behaviour=careless)
    assert shop.process("1", "fails").outcome == "retrying"
    assert calls.made == []
    assert shop.process("2", "works").outcome == "done"
    with caplog.at_level(logging.ERROR, "onceward"):
        assert shop.process("3", "careless").outcome == "done"
    assert caplog.records[-1].getMessage().startswith("a call of message.after_commit() failed; its message is finish")
    assert calls.made == ["2", "3"]
    shop.finish()
    assert (calls.made, calls.early) == (["2", "3", "1"], [])


def test_a_dry_run_calls_nothing(shop: Shop) -> None:
    calls = Calls(shop)
    shop.handle(behaviour=calls.behaviour(fails=lambda _: False))
    seq = shop.receive("m1").seq
    assert shop.inbox.admin.dry_run(seq).ended == "returned"
    assert calls.made == []
    shop.finish()
    assert calls.made == ["m1"]


def test_only_a_running_handler_leaves_calls(shop: Shop) -> None:
    kept: list[Message] = []
    refused: list[str] = []

    def keeping(message: Message) -> Steps:
        kept.append(message)
        try:
            message.after_commit(message.id)  # type: ignore[arg-type]
        except ContractViolation as error:
            refused.append(str(error))
        yield wrote(message)

    shop.handle(behaviour=keeping)
    shop.process("m1")
    with pytest.raises(ContractViolation, match=r"after_commit\(\) was called outside of its handler"):
        kept[0].after_commit(print)
    with pytest.raises(ContractViolation, match=r"after_commit\(\) works inside a handler"):
        kept[0]._replace(outbox=None).after_commit(print)
    (sentence,) = refused
    assert sentence.startswith("message.after_commit(): call must be a function without arguments, not str; write ")
