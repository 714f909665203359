"""DBOS: a workflow under the payment's id, whose transaction is recorded with its effect; a queue partition per account."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig, SQLAlchemyDatasource
from sqlalchemy import text

from faults.effect import book
from faults.place import Place
from faults.plan import Payment
from faults.program import Send

QUEUE, VERSION = "payments", "1"


def _address(place: Place) -> str:
    return place.database.replace("postgresql://", "postgresql+psycopg://")


def _launch(place: Place, executor: str) -> None:
    config: DBOSConfig = {
        "name": "faults",
        "system_database_url": place.database,
        "executor_id": executor,
        "application_version": VERSION,
    }
    DBOS(config=config)
    datasource = SQLAlchemyDatasource.create(_address(place))

    @datasource.transaction(isolation_level="READ COMMITTED")
    def transact(payment: dict[str, Any]) -> None:
        session = datasource.sql_session()
        book(place, Payment(**payment), lambda sql, values: session.execute(text(sql), values))

    @DBOS.workflow(name="pay", max_recovery_attempts=place.settings["max_recovery_attempts"])
    def pay(payment: dict[str, Any]) -> None:
        for left in reversed(range(place.settings["attempts"])):
            try:
                transact(payment)
            except Exception:
                if not left:
                    raise
                DBOS.sleep(place.settings["retry_seconds"])
            else:
                return

    DBOS.launch()


def prepare(place: Place) -> None:
    """Its tables, and its queue."""
    _launch(place, "prepare")
    DBOS.register_queue(QUEUE, **place.settings["queue"])
    DBOS.destroy()


def sender(place: Place) -> Send:
    """Enqueue a workflow under the payment's id: a second one is the same workflow."""
    client = DBOSClient(system_database_url=place.database)

    def send(payment: Payment) -> None:
        client.enqueue(
            {
                "queue_name": QUEUE,
                "workflow_name": "pay",
                "workflow_id": payment.id,
                "queue_partition_key": payment.account,
                "app_version": VERSION,
            },
            asdict(payment),
        )

    return send


def work(place: Place, number: int) -> None:
    """A process under a name of its own, so that it recovers at its start what it left behind."""
    _launch(place, f"worker-{number}")
    DBOS.register_queue(QUEUE, **place.settings["queue"])
    threading.Event().wait()


def failed(place: Place) -> list[str]:
    """The workflows that ended with an error, or were recovered too often."""
    return _listed(place, "ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


def held(place: Place) -> list[str]:
    """The workflows that are enqueued, or pending."""
    return _listed(place, "ENQUEUED", "PENDING", "DELAYED")


def _listed(place: Place, *statuses: str) -> list[str]:
    client = DBOSClient(system_database_url=place.database)
    try:
        return [one.workflow_id for status in statuses for one in client.list_workflows(status=status)]
    finally:
        client.destroy()
