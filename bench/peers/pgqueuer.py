"""PgQueuer: its manager, on asyncpg and uvloop."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import uvloop
from pgqueuer import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell, wait_for_end


def fill(url: str, count: int, _settings: Settings) -> None:
    """Store numbered jobs."""

    async def store() -> None:
        connection = await asyncpg.connect(url)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        for bodies in texts(count):
            await queries.enqueue(["job"] * len(bodies), [body.encode() for body in bodies], [0] * len(bodies))
        await connection.execute("VACUUM ANALYZE")
        await connection.close()

    asyncio.run(store())


def drain(url: str, settings: Settings) -> None:
    """One process of a race."""

    async def work() -> None:
        manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(url))))

        @manager.entrypoint("job")
        async def job(found: Any) -> None:
            TALLY.run(found.payload)

        async def end() -> None:
            await asyncio.to_thread(wait_for_end)
            manager.shutdown.set()

        ready()
        ending = asyncio.create_task(end())
        await manager.run(batch_size=settings["batch_size"])
        await ending
        tell(TALLY.answer())

    {"uvloop": uvloop.run, "asyncio": asyncio.run}[settings["loop"]](work())
