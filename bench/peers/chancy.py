"""Chancy: its worker with the asyncio executor."""

from __future__ import annotations

import asyncio
import logging

from chancy import Chancy, Queue, Worker, job

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell, wait_for_end


@job(queue="default")
async def decode(*, body: str) -> None:
    """Decode the body."""
    TALLY.run(body)


def fill(url: str, count: int, settings: Settings) -> None:
    """Store numbered jobs."""

    async def store() -> None:
        queue = {name: value for name, value in settings.items() if name != "send_outgoing_interval"}
        async with Chancy(url) as chancy:
            await chancy.migrate()
            await chancy.declare(Queue("default", executor=Chancy.Executor.Async, **queue))
            for bodies in texts(count):
                async for _ in chancy.push_many([decode.job.with_kwargs(body=body) for body in bodies]):
                    pass

    asyncio.run(store())


def drain(url: str, settings: Settings) -> None:
    """One process of a race."""

    async def work() -> None:
        async with Chancy(url, log=logging.getLogger("quiet")) as chancy:
            worker = Worker(chancy, register_signal_handlers=False)
            worker.send_outgoing_interval = settings["send_outgoing_interval"]
            ready()
            async with worker:
                await asyncio.to_thread(wait_for_end)
        tell(TALLY.answer())

    asyncio.run(work())
