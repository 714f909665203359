"""`tx` belongs to one call of a handler: whoever outlives it, or never belonged to it, is refused (D08)."""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import pytest

from onceward import ContractViolation, Message
from tests.contract.behaviour import Do, Steps, Until, wrote
from tests.contract.harness import Shop, arguments
from tests.waiting import wait_until, wait_until_async

LATE = "INSERT INTO effects VALUES ('late', 'late')"


class Stragglers:
    """Helpers of the first message that use its `tx` while the second one's handler runs."""

    def __init__(self, shop: Shop) -> None:
        self.is_async = shop.kind == "async"
        self.second_runs = False
        self.errors: list[Exception] = []
        self._tasks: list[Any] = []

    @property
    def done(self) -> bool:
        """Whether all four have tried."""
        return len(self.errors) == 4

    def start(self, tx: Any) -> Any:
        """One with and one without the handler's context, each with the connection and with a cursor made before."""
        return self._start_async(tx) if self.is_async else self._start_threads(tx)

    def _start_threads(self, tx: Any) -> None:
        cursor = tx.cursor()
        for used in (tx, cursor):
            threading.Thread(target=self._late, args=(used,)).start()
            threading.Thread(target=copy_context().run, args=(self._late, used)).start()

    def _late(self, used: Any) -> None:
        wait_until(lambda: self.second_runs)
        try:
            used.execute(LATE)
        except Exception as error:  # noqa: BLE001 - what the test looks at
            self.errors.append(error)

    async def _start_async(self, tx: Any) -> None:
        cursor = tx.cursor()
        cursor = await cursor if hasattr(cursor, "__await__") else cursor
        for used in (tx, cursor):
            self._tasks.append(asyncio.create_task(self._late_async(used), context=Context()))
            self._tasks.append(asyncio.create_task(self._late_async(used)))

    async def _late_async(self, used: Any) -> None:
        async def holds() -> bool:
            return self.second_runs

        await wait_until_async(holds)
        try:
            await used.execute(LATE)
        except Exception as error:  # noqa: BLE001 - what the test looks at
            self.errors.append(error)

    def note_second(self, _: Any) -> None:
        """The second message's handler has begun its transaction."""
        self.second_runs = True


@pytest.mark.parametrize("group", [1, 10], ids=["alone", "in a group"])
def test_whoever_outlives_a_handler_cannot_write_into_the_next_message(shop: Shop, group: int) -> None:
    """D08: refused with a sentence, sync and async, also through a cursor that was made in time."""
    stragglers = Stragglers(shop)

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1":
            yield Do(stragglers.start)
        else:
            yield Do(stragglers.note_second)
            yield Until(lambda: stragglers.done)

    shop.handle(behaviour=behaviour, group=group)
    shop.receive_many(arguments(message_id) for message_id in ("m1", "m2"))
    shop.drain()
    assert shop.effects() == ["m1", "m2"]
    assert {type(error) for error in stragglers.errors} == {ContractViolation}
    assert all("does not belong to the running handler" in str(error) for error in stragglers.errors)


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_helper_with_the_context_of_its_handler_may_use_tx(shop: Shop, how: str) -> None:
    """D08: what works for the handler itself: a task, or a thread that was given the context."""
    mark = "?" if shop.dialect == "sqlite" else "%s"
    statement = f"INSERT INTO effects VALUES ({mark}, 'helper')"

    async def help_async(message: Message, tx: Any) -> None:
        await asyncio.gather(asyncio.create_task(tx.execute(statement, [message.id])))

    def help_sync(message: Message, tx: Any) -> None:
        helper = threading.Thread(target=copy_context().run, args=(tx.execute, statement, [message.id]))
        helper.start()
        helper.join()

    def behaviour(message: Message) -> Steps:
        yield Do(partial(help_async if shop.kind == "async" else help_sync, message))

    shop.handle(behaviour=behaviour)
    if how == "process":
        shop.process("m1")
    else:
        shop.receive("m1")
        shop.drain()
    assert shop.effects() == ["m1"]
