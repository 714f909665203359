"""Procrastinate: its worker until nothing is left, many jobs at a time."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell


def _app(url: str) -> App:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=16))

    @app.task(name="job")
    async def job(body: str) -> None:
        TALLY.run(body)

    return app


def fill(url: str, count: int, _settings: Settings) -> None:
    """Store numbered jobs."""
    app = _app(url)

    async def store() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for bodies in texts(count):
                await app.tasks["job"].batch_defer_async(*({"body": body} for body in bodies))

    asyncio.run(store())


def drain(url: str, settings: Settings) -> None:
    """One process of a race."""
    app = _app(url)

    async def work() -> None:
        async with app.open_async():
            ready()
            await app.run_worker_async(wait=False, install_signal_handlers=False, **settings)
        tell(TALLY.answer())

    asyncio.run(work())
