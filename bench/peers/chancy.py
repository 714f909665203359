"""Chancy: its worker with the asyncio executor, polling eagerly."""

from __future__ import annotations

import asyncio
import logging

from chancy import Chancy, Queue, Worker, job

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part

QUEUE = Queue(
    "default",
    concurrency=100,
    executor="chancy.executors.asyncex.AsyncExecutor",
    polling_interval=1,
    eager_polling=True,
)


@job(queue="default")
async def decode(*, body: str) -> None:
    """Decode the body."""
    TALLY.run(body)


def fill(url: str, count: int) -> None:
    """Store numbered jobs."""

    async def store() -> None:
        async with Chancy(url) as chancy:
            await chancy.migrate()
            await chancy.declare(QUEUE)
            jobs = [decode.job.with_kwargs(body=text(number)) for number in range(count)]
            async for _ in chancy.push_many(jobs):
                pass

    asyncio.run(store())


def drain(url: str, count: int) -> None:
    """One process of a race."""
    done = "SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'"

    async def work() -> Answer:
        quiet = logging.getLogger("quiet")
        async with Chancy(url, log=quiet) as chancy, Worker(chancy, register_signal_handlers=False):
            left = count
            while left:
                await asyncio.sleep(0.02)
                async with chancy.pool.connection() as connection:
                    cursor = await connection.execute(done)
                    left = count - (await cursor.fetchone())[0]
        return TALLY.answer()

    take_part(lambda: asyncio.run(work()))
