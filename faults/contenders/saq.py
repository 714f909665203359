"""SAQ on Redis: jobs under the payment's id as key, with a timeout after which a sweep brings them back."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from saq import Queue, Status, Worker

from faults.effect import Ledger
from faults.place import Place
from faults.plan import Payment
from faults.program import Send


def prepare(_place: Place) -> None:
    """It needs nothing."""


def sender(place: Place) -> Send:
    """Enqueue under the payment's id: a job that is not finished is not enqueued again."""
    loop = asyncio.new_event_loop()
    queue = Queue.from_url(place.redis)

    def send(payment: Payment) -> None:
        loop.run_until_complete(queue.enqueue("pay", key=payment.id, payment=asdict(payment), **place.settings["job"]))

    return send


def work(place: Place, _number: int) -> None:
    """Its worker, with two jobs at a time."""
    ledger = Ledger(place)

    async def pay(_context: dict[str, Any], *, payment: dict[str, Any]) -> None:
        await asyncio.to_thread(ledger.book, Payment(**payment))

    async def run() -> None:
        queue = Queue.from_url(place.redis)
        await Worker(queue, functions=[("pay", pay)], **place.settings["worker"]).start()

    asyncio.run(run())


def failed(place: Place) -> list[str]:
    """The jobs that failed or were aborted."""
    return asyncio.run(_listed(place, Status.FAILED, Status.ABORTED))


def held(place: Place) -> list[str]:
    """The jobs that are neither."""
    return asyncio.run(_listed(place, Status.NEW, Status.QUEUED, Status.ACTIVE, Status.ABORTING))


async def _listed(place: Place, *statuses: Status) -> list[str]:
    queue = Queue.from_url(place.redis)
    return [job.key async for job in queue.iter_jobs(list(statuses))]
