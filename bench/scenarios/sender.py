"""Sends messages, and knows when the effect of each was committed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from bench.figures import expect
from bench.messages import random_id
from onceward import Inbox

PATIENCE = 60.0
"""After so many seconds a message that has not run counts as if it ran now; the notes say so."""


class Found:
    """What a scenario found."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.notes: dict[str, object] = {}

    def add(self, name: str, value: float) -> None:
        """One more repetition of a figure."""
        self.values.setdefault(name, []).append(value)


class Sender:
    """Numbers what it sends; `waits` has the seconds from the call of `receive` to the commit of the effect."""

    def __init__(self, inbox: Inbox, found: Found) -> None:
        self.inbox, self._found = inbox, found
        self._numbers = itertools.count()
        self._sent: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._news = asyncio.Event()

    async def send(self, kind: str, **data: Any) -> int:
        """One message, by a call of its own."""
        message = self.new(kind, **data)
        await self.inbox.areceive(**message)
        return int(message["data"]["number"])

    async def send_many(self, kind: str, count: int, **data: Any) -> list[int]:
        """Many, in one call."""
        deliveries = [self.new(kind, **data) for _ in range(count)]
        await self.inbox.areceive_many(deliveries)  # type: ignore[arg-type] # the shape of receive's arguments
        return [delivery["data"]["number"] for delivery in deliveries]

    async def steadily(self, kind: str, count: int, gap: float, **data: Any) -> list[int]:
        """One after the other, every `gap` seconds, whatever became of the others."""
        calls = []
        for _ in range(count):
            calls.append(asyncio.create_task(self.send(kind, **data)))
            await asyncio.sleep(gap)
        return await asyncio.gather(*calls)

    def new(self, kind: str, **data: Any) -> dict[str, Any]:
        """What `receive` takes; from now on its time runs."""
        number = next(self._numbers)
        self._sent[number] = time.perf_counter()
        return {"source": "bench", "id": random_id(), "type": kind, "data": {"number": number, **data}}

    def open(self, numbers: Collection[int]) -> list[int]:
        """Those that have not run yet."""
        return [number for number in numbers if number not in self._waits]

    async def waits(self, name: str, numbers: Collection[int], patience: float = PATIENCE) -> list[float]:
        """How long each took, as soon as all of them have run or the patience is over."""
        deadline = time.perf_counter() + patience
        while (left := self.open(numbers)) and (seconds := deadline - time.perf_counter()) > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), seconds)
            except TimeoutError:
                break
        if left:
            self._found.notes[name] = f"{len(left)} of {len(numbers)} had not run after {patience:g} seconds"
        now = time.perf_counter()
        return [self._waits.get(number, now - self._sent[number]) for number in numbers]

    async def listen(self, listener: psycopg.AsyncConnection[Any]) -> None:
        """Note when effects are committed."""
        async for notice in listener.notifies():
            number = int(notice.payload)
            self._waits.setdefault(number, time.perf_counter() - self._sent[number])
            self._news.set()


@asynccontextmanager
async def sending(url: str, inbox: Inbox, found: Found) -> AsyncIterator[Sender]:
    """A sender that hears of effects."""
    sender = Sender(inbox, found)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as listener:
        await listener.execute("LISTEN done")
        listening = asyncio.create_task(sender.listen(listener))
        try:
            yield sender
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await inbox.aclose()


def check_once(what: str, url: str, numbers: Collection[int], left: Collection[int] = ()) -> None:
    """Each of them has exactly one effect; those that are left, at most one."""
    with psycopg.connect(url) as connection:
        counted = "SELECT number, count(*) FROM effect WHERE number = ANY(%s) GROUP BY number"
        effects: dict[int, int] = dict(connection.execute(counted, [list(numbers)]).fetchall())
    expect(f"{what}: messages with two effects", [number for number, count in effects.items() if count > 1], [])
    expect(f"{what}: messages without effect", [n for n in numbers if n not in effects and n not in left], [])
