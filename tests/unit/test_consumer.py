"""What a source is told to forget: each delivery that is committed, and none that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from onceward.brokers.consumer import MODES, Consumer, Mode
from onceward.brokers.envelope import Envelope
from onceward.brokers.protocol import Arrival, BrokerUnavailable
from onceward.errors import StoreError, StoreUnavailable
from onceward.message import Arguments, Receipt

FOUR = ["a", "b", "c", "d"]


class Queue:
    """A source that hands over one batch, and remembers what it was told."""

    name, redelivery, positions = "queue", timedelta(days=1), True

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []
        self.connection: list[str] = []

    async def open(self) -> None:
        self.connection.append("open")

    async def close(self) -> None:
        self.connection.append("close")

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        del limit, seconds
        return [Arrival(b"{}", {}, handle=name, position=name, id=name, type="t") for name in FOUR]

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        self.told.append(("ack", [arrival.handle for arrival in arrivals]))

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        self.told.append(("nack", [arrival.handle for arrival in arrivals]))


class Store:
    """An inbox that keeps what comes, until it says no; with that the stop comes."""

    def __init__(self, stopping: asyncio.Event, *, most: int, refuses_batches: bool = False) -> None:
        self._stopping, self._loop = stopping, asyncio.get_running_loop()
        self._most, self._refuses_batches = most, refuses_batches
        self.kept: list[str] = []

    def receive_many(self, messages: Sequence[Arguments]) -> list[Receipt]:
        if self._refuses_batches and len(messages) > 1:
            raise StoreError("one of them is at fault")
        for message in messages:
            self._keep(message["id"])
        return []

    async def aprocess_many(self, messages: Sequence[Arguments]) -> list[Receipt]:
        return self.receive_many(messages)

    def _keep(self, name: str) -> None:
        if len(self.kept) == self._most:
            self._loop.call_soon_threadsafe(self._stopping.set)
            raise StoreUnavailable("away")
        self.kept.append(name)
        if len(self.kept) == len(FOUR):
            self._loop.call_soon_threadsafe(self._stopping.set)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("most", [0, 1, 3, 4])
async def test_a_stop_half_way_acknowledges_what_is_kept_and_gives_back_the_rest(most: int, *, mode: Mode) -> None:
    """Also where the database has refused the batch as a whole, and takes it one by one."""
    queue, stopping = Queue(), asyncio.Event()
    store = Store(stopping, most=most, refuses_batches=True)
    await Consumer(queue, Envelope("queue"), mode=mode).run(store, stopping)
    assert store.kept == FOUR[:most]
    wanted = [("ack", FOUR[:most]), ("nack", FOUR[most:])]
    assert queue.told == [(word, names) for word, names in wanted if names]


async def test_a_paused_source_is_left_alone_until_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is opened, and between two batches: then it is closed, so that a broker keeps nothing ready for it."""
    monkeypatch.setattr("onceward.brokers.consumer.PAUSED_SECONDS", 0.0)
    queue, stopping = Queue(), asyncio.Event()
    store = Store(asyncio.Event(), most=100)
    answers = iter([True, True, False, False, True, True, False])
    seen: list[tuple[str, int, int]] = []

    async def is_paused(source: str) -> bool:
        """Twice before the first batch, and twice after it; then the reader is stopped."""
        seen.append((source, len(queue.connection), len(queue.told)))
        answer = next(answers, None)
        if answer is None:
            stopping.set()
        return bool(answer)

    async def ack(arrivals: Sequence[Arrival]) -> None:
        """As always; the reader that would read on is stopped."""
        queue.told.append(("ack", [arrival.handle for arrival in arrivals]))
        if len(queue.told) > len(FOUR):
            stopping.set()

    monkeypatch.setattr(queue, "ack", ack)
    await Consumer(queue, Envelope("queue")).run(store, stopping, is_paused=is_paused)
    assert queue.connection == ["open", "close", "open", "close"]
    assert seen == [
        *[("queue", 0, 0)] * 3,
        ("queue", 1, 0),
        ("queue", 1, 1),
        *[("queue", 2, 1)] * 2,
        ("queue", 3, 1),
    ]
    assert queue.told == [("ack", FOUR)] * 2


class Refused(Queue):
    """A queue that fails behind its beginning, as where the database does not say how far it was read."""

    def __init__(self, failures: list[bool]) -> None:
        super().__init__()
        self._failures = failures

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        if self._failures and self._failures.pop(0):
            raise BrokerUnavailable("the database does not say how far it was read")
        return await super().next(limit, seconds)


async def test_a_source_that_fails_at_once_is_tried_less_and_less_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try of a Kafka reader moves the partitions of its group. What was read makes the pause short again."""
    monkeypatch.setattr("onceward.brokers.consumer.FIRST_PAUSE", 0.001)
    failing, stopping = Refused([True] * 4 + [False] + [True] * 2), asyncio.Event()
    kept: list[str] = []

    class Twice(Store):
        """It is full when all has come twice."""

        def _keep(self, name: str) -> None:
            kept.append(name)
            if len(kept) == 2 * len(FOUR):
                self._loop.call_soon_threadsafe(self._stopping.set)

    await Consumer(failing, Envelope("queue")).run(Twice(stopping, most=8), stopping)
    told = [record.args for record in caplog.records if "trying again" in record.msg]
    pauses = [args[1] for args in told if isinstance(args, tuple)]
    assert pauses == [0.001, 0.002, 0.004, 0.008, 0.001, 0.002]
