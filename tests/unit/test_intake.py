"""What a source is told to forget: each delivery that is committed, and none that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import StoreError, StoreUnavailable
from onceward.message import Arguments, Receipt
from onceward.sources.envelope import Envelope
from onceward.sources.intake import Intake
from onceward.sources.protocol import Arrival

FOUR = ["a", "b", "c", "d"]


class Queue:
    """A source that hands over one batch, and remembers what it was told."""

    name, redelivery, positions = "queue", timedelta(days=1), True

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to leave."""

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        del limit, seconds
        return [Arrival(b"{}", {}, handle=name, position=name, id=name, type="t") for name in FOUR]

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self.told.append(("accept", [arrival.handle for arrival in arrivals]))

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        self.told.append(("release", [arrival.handle for arrival in arrivals]))


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
            self.process(**message)
        return []

    def process(self, **message: Any) -> Receipt:
        if len(self.kept) == self._most:
            self._loop.call_soon_threadsafe(self._stopping.set)
            raise StoreUnavailable("away")
        self.kept.append(message["id"])
        if len(self.kept) == len(FOUR):
            self._loop.call_soon_threadsafe(self._stopping.set)
        return Receipt("accepted", 1)


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "one by one"])
@pytest.mark.parametrize("most", [0, 1, 3, 4])
async def test_a_stop_half_way_accepts_what_is_kept_and_releases_the_rest(most: int, *, inline: bool) -> None:
    """Also where the database has refused the batch as a whole, and takes it one by one."""
    queue, stopping = Queue(), asyncio.Event()
    store = Store(stopping, most=most, refuses_batches=True)
    await Intake(queue, Envelope("queue"), inline=inline).run(store, stopping)
    assert store.kept == FOUR[:most]
    wanted = [("accept", FOUR[:most]), ("release", FOUR[most:])]
    assert queue.told == [(word, names) for word, names in wanted if names]
