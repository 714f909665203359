"""PgQueuer: a deduplication key while a job waits, retries in the database, failed jobs held, heartbeats."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import psycopg
from pgqueuer import QueueManager
from pgqueuer.db import PsycopgDriver
from pgqueuer.executors import DatabaseRetryEntrypointExecutor
from pgqueuer.queries import Queries

from faults.effect import Ledger
from faults.place import Place
from faults.plan import Payment
from faults.program import Send


async def _queries(place: Place) -> Queries:
    return Queries(PsycopgDriver(await psycopg.AsyncConnection.connect(place.database, autocommit=True)))


def prepare(place: Place) -> None:
    """Its tables."""

    async def install() -> None:
        await (await _queries(place)).install()

    asyncio.run(install())


def sender(place: Place) -> Send:
    """Enqueue under the payment's id: a job that waits or runs is not enqueued again."""
    loop = asyncio.new_event_loop()
    queries = loop.run_until_complete(_queries(place))

    def send(payment: Payment) -> None:
        body = json.dumps(asdict(payment)).encode()
        loop.run_until_complete(queries.enqueue(["pay"], [body], [0], dedupe_key=[payment.id], on_conflict="skip"))

    return send


def work(place: Place, _number: int) -> None:
    """Its manager."""
    ledger, retry = Ledger(place), place.settings["retry"]

    def executor(parameters: Any) -> DatabaseRetryEntrypointExecutor:
        return DatabaseRetryEntrypointExecutor(
            parameters=parameters,
            max_attempts=retry["max_attempts"],
            initial_delay=timedelta(seconds=retry["initial_delay_seconds"]),
            backoff_multiplier=retry["backoff_multiplier"],
        )

    async def run() -> None:
        manager = QueueManager(await _queries(place))

        @manager.entrypoint("pay", on_failure="hold", executor_factory=executor)
        async def pay(job: Any) -> None:
            await asyncio.to_thread(ledger.book, Payment(**json.loads(job.payload)))

        await manager.run(
            batch_size=place.settings["batch_size"], heartbeat_timeout=timedelta(seconds=place.lease_seconds)
        )

    asyncio.run(run())


def failed(place: Place) -> list[str]:
    """The jobs that are held as failed."""
    return _listed(place, "failed")


def held(place: Place) -> list[str]:
    """The jobs that wait, or are picked."""
    return _listed(place, "queued", "picked")


def _listed(place: Place, *statuses: str) -> list[str]:
    query = "SELECT payload FROM pgqueuer WHERE status::text = ANY(%s)"
    with psycopg.connect(place.database) as connection:
        return [json.loads(row[0])["id"] for row in connection.execute(query, [list(statuses)])]
