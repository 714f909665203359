"""PgQueuer: its manager in drain mode, with the batch size that was fastest."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
from pgqueuer import QueueManager
from pgqueuer.db import PsycopgDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part

BATCH = 1000


async def _connect(url: str) -> Any:
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


def fill(url: str, count: int) -> None:
    """Store numbered jobs."""

    async def store() -> None:
        async with await _connect(url) as connection:
            queries = Queries(PsycopgDriver(connection))
            await queries.install()
            for first in range(0, count, 1000):
                bodies = [text(number).encode() for number in range(first, min(first + 1000, count))]
                await queries.enqueue(["job"] * len(bodies), bodies, [0] * len(bodies))

    asyncio.run(store())


def drain(url: str, _count: int) -> None:
    """One process of a race."""

    async def work() -> Answer:
        async with await _connect(url) as connection:
            manager = QueueManager(Queries(PsycopgDriver(connection)))

            @manager.entrypoint("job")
            async def job(found: Any) -> None:
                TALLY.run(found.payload or b"")

            await manager.run(
                dequeue_timeout=timedelta(seconds=1),
                batch_size=BATCH,
                mode=QueueExecutionMode.drain,
            )
        return TALLY.answer()

    take_part(lambda: asyncio.run(work()))
