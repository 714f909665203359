"""What the database refuses of one message holds up no other: neither its source nor its worker (D20)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest

from onceward import Message, RetryPolicy
from onceward.admin.doctor import examine
from onceward.brokers.consumer import MODES, Consumer, Mode, Receiver
from onceward.brokers.envelope import Envelope
from onceward.brokers.protocol import Arrival
from onceward.domain.identity import UNIDENTIFIED
from onceward.steps.context import MOST_PLACED
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import SOURCE, TYPE, Shop, arguments


def refuse(shop: Shop, table: str, column: str, part: str) -> None:
    """Let the database refuse rows of one of the tables in which a text has this part."""
    table, name = f"{shop.prefix}{table}", f"refusal_{column}"
    if shop.dialect == "postgres":
        shop.sql(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK (position('{part}' in {column}) = 0) NOT VALID")
    else:
        shop.sql(
            f"CREATE TRIGGER {name} BEFORE INSERT ON {table} WHEN instr(new.{column}, '{part}') > 0 "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )


class Broker:
    """Delivers one batch, and ends the reading when there is no more."""

    name, redelivery, positions = "broker", timedelta(days=1), True

    def __init__(self, *ids: str) -> None:
        self.stopping = asyncio.Event()
        self.accepted: list[str] = []
        self._left = [Arrival(b'{"key": 1}', {}, name, f"at {name}", name, TYPE) for name in ids]

    async def open(self) -> None:
        """It is there."""

    async def next(self, limit: int, seconds: float) -> list[Arrival]:  # noqa: ARG002 - those of a source
        batch, self._left = self._left[:limit], self._left[limit:]
        if not batch:
            self.stopping.set()
        return batch

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        self.accepted += [arrival.handle for arrival in arrivals]

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        raise AssertionError(f"{len(arrivals)} deliveries were given back")

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_cannot_be_stored_does_not_block_its_source(
    shop: Shop, caplog: pytest.LogCaptureFixture, *, mode: Mode
) -> None:
    """It is kept under its position, for a person; those around it are stored as ever, in their order."""
    shop.handle(key="key")
    refuse(shop, "body", "id", "refused")
    broker = Broker("m1", "refused", "m2", "m3")

    async def read() -> None:
        try:
            reader = Consumer(broker, Envelope("broker"), mode=mode)
            await reader.run(cast("Receiver", shop.inbox), broker.stopping)
        finally:
            await shop.inbox.store.async_close()  # what handlers had on this loop, as `run` does

    asyncio.run(read())
    assert broker.accepted == ["m1", "refused", "m2", "m3"]
    shop.drain()
    assert shop.effects() == ["m1", "m2", "m3"]
    (kept,) = shop.inbox.admin.messages(type=UNIDENTIFIED)
    assert "refuse" in shop.detail(kept.seq).headers["onceward-reason"]
    assert "'refused' of broker" in caplog.text
    shop.inbox.admin.discard(kept.seq, reason="test")


@pytest.mark.parametrize("part", ["→", "its text could not be stored"])
def test_a_failure_that_cannot_be_stored_does_not_stop_the_worker(shop: Shop, part: str) -> None:
    """It is charged without its text; where that is refused too, it is put off. Those beside it are done."""
    refuse(shop, "attempt", "error", part)
    if part != "→":
        refuse(shop, "attempt", "traceback", "→")

    def picky(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "bad":
            raise RuntimeError("a → b")

    shop.handle(behaviour=picky, retry=RetryPolicy(attempts=1))
    for name in ("m1", "bad", "m2"):
        shop.receive(name)
    shop.drain()
    assert sorted(shop.effects()) == ["m1", "m2"]
    (bad,) = shop.inbox.admin.messages(source=SOURCE, type=TYPE)[1:2]
    if part == "→":
        assert (bad.status, bad.error) == ("dead", "RuntimeError: its text could not be stored")
    else:
        assert (bad.status, bad.attempts) == ("retrying", 0)


def test_an_inline_failure_that_cannot_be_stored_is_stored_without_its_text(shop: Shop) -> None:
    """Else its caller would get an error, and its sender would send it for ever."""
    refuse(shop, "attempt", "error", "→")

    def failing(message: Message) -> Steps:
        yield wrote(message)
        raise RuntimeError("a → b")

    shop.handle(behaviour=failing, retry=RetryPolicy(attempts=1))
    assert shop.process("bad").finished is False
    assert (shop.status("bad"), shop.error("bad")) == ("dead", "RuntimeError: its text could not be stored")
    assert shop.effects() == []


def test_an_unhandled_message_that_cannot_be_placed_does_not_stop_the_worker(shop: Shop) -> None:
    """It stays unhandled; those around it get their rows."""
    for name in ("m1", "refused", "m2"):
        shop.receive(name)
    refuse(shop, "body", "id", "refused")
    worker = shop.another()
    worker.handle(consumer="billing")
    worker.drain()
    assert sorted(worker.effects()) == ["m1", "m2"]
    assert [row.id for row in shop.inbox.admin.messages(status="unhandled")] == ["refused"]


def test_many_that_cannot_be_placed_do_not_keep_those_behind_them(shop: Shop) -> None:
    """A whole transaction of them: the next ones are placed all the same."""
    shop.receive_many([arguments(f"refused {number}") for number in range(MOST_PLACED + 1)])
    shop.receive("m1")
    refuse(shop, "body", "id", "refused")
    worker = shop.another()
    worker.handle(consumer="billing")
    worker.drain()
    assert worker.effects() == ["m1"]
    assert shop.count("queue", "state = 'unhandled'") == MOST_PLACED + 1


def test_one_that_cannot_be_placed_holds_up_its_own_key_alone(shop: Shop) -> None:
    """It is tried less and less often; the doctor says so, and a person decides."""
    shop.receive("refused", data={"k": 1})
    refuse(shop, "body", "id", "refused")
    worker, now = shop.another(), 0.0
    worker.inbox.context.clock = lambda: now
    worker.handle(consumer="billing", key="k")
    worker.drain()
    worker.receive("same", data={"k": 1})
    worker.receive("other", data={"k": 2})
    assert worker.process("inline", data={"k": 3}).finished
    worker.drain()
    assert worker.effects() == ["inline", "other"]
    assert worker.status("same") == "waiting"
    tried = []
    for moment in (0.5, 1.5, 2.5, 4.0):
        now = moment
        worker.drain()
        tried.append(worker.inbox.context.unplaceable[shop.seqs["refused"]])
    assert tried == [(1, 1.0), (2, 3.5), (2, 3.5), (3, 8.0)]
    (found,) = (one for one in examine(worker.inbox) if "cannot be given to consumers" in one.what)
    assert f"the first is #{shop.seqs['refused']}" in found.what
    assert not [one for one in examine(worker.inbox) if "without a handler" in one.what]
    shop.inbox.admin.discard(shop.seqs["refused"], reason="test")
    worker.drain()
    assert worker.effects() == ["inline", "other", "same"]


def test_one_that_was_refused_is_placed_when_the_database_takes_it(shop: Shop) -> None:
    """In its order: those of its key have waited."""
    shop.receive("refused", data={"k": 1})
    refuse(shop, "body", "id", "refused")
    worker, now = shop.another(), 0.0
    worker.inbox.context.clock = lambda: now
    order: list[str] = []

    def noting(message: Message) -> Steps:
        order.append(message.id)
        yield wrote(message)

    worker.handle(consumer="billing", key="k", behaviour=noting)
    worker.drain()
    worker.receive("same", data={"k": 1})
    worker.drain()
    assert order == []
    drop = "ALTER TABLE {}body DROP CONSTRAINT refusal_id" if shop.dialect == "postgres" else "DROP TRIGGER refusal_id"
    shop.sql(drop.format(shop.prefix))
    now = 2.0
    worker.drain()
    assert order == ["refused", "same"]
    assert worker.inbox.context.unplaceable == {}
