"""Procrastinate: its worker until nothing is left, many jobs at a time."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part


def _app(url: str) -> App:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=16))

    @app.task(name="job")
    async def job(body: str) -> None:
        TALLY.run(body)

    return app


def fill(url: str, count: int) -> None:
    """Store numbered jobs."""
    app = _app(url)

    async def store() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await app.tasks["job"].batch_defer_async(*({"body": text(number)} for number in range(count)))

    asyncio.run(store())


def drain(url: str, _count: int) -> None:
    """One process of a race."""
    app = _app(url)

    async def work() -> Answer:
        async with app.open_async():
            await app.run_worker_async(wait=False, concurrency=20, install_signal_handlers=False, listen_notify=False)
        return TALLY.answer()

    take_part(lambda: asyncio.run(work()))
