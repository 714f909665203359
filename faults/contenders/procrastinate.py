"""Procrastinate: one lock for each account, retries, and the periodic task that its documentation asks for."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy, SyncPsycopgConnector

from faults.effect import Ledger
from faults.place import Place
from faults.plan import Payment
from faults.program import Send


def app_of(place: Place, connector: Any) -> App:
    """The application of a process."""
    app = App(connector=connector)
    ledger = Ledger(place)

    @app.task(name="pay", retry=RetryStrategy(**place.settings["retry"]))
    def pay(payment: dict[str, Any]) -> None:
        ledger.book(Payment(**payment))

    @app.periodic(cron=place.settings["stalled_cron"])
    @app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs", pass_context=True)
    async def retry_stalled_jobs(context: JobContext, timestamp: int) -> None:  # noqa: ARG001 - as it is called
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=place.lease_seconds):
            await app.job_manager.retry_job(job)

    return app


def prepare(place: Place) -> None:
    """Its tables."""
    with app_of(place, SyncPsycopgConnector(conninfo=place.database)).open() as app:
        app.schema_manager.apply_schema()


def sender(place: Place) -> Send:
    """Defer under the account's lock.

    Without a queueing lock: where a copy waited under the same one, a stalled job could not be retried, nor the copy run
    behind it, and both were stuck.
    """
    app = app_of(place, SyncPsycopgConnector(conninfo=place.database))
    app.open()

    def send(payment: Payment) -> None:
        app.configure_task("pay", lock=payment.account).defer(payment=asdict(payment))

    return send


def work(place: Place, _number: int) -> None:
    """Its worker."""
    app = app_of(place, PsycopgConnector(conninfo=place.database))

    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(**place.settings["worker"])

    asyncio.run(run())


def failed(place: Place) -> list[str]:
    """The jobs with the status failed."""
    return _listed(place, "failed")


def held(place: Place) -> list[str]:
    """The jobs that are to do, or being done."""
    return _listed(place, "todo") + _listed(place, "doing")


def _listed(place: Place, status: str) -> list[str]:
    with app_of(place, SyncPsycopgConnector(conninfo=place.database)).open() as app:
        return [job.task_kwargs["payment"]["id"] for job in app.job_manager.list_jobs(status=status, task="pay")]
