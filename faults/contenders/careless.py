"""The careless consumer: looks whether the message is known, does the work, and remembers it then."""

from __future__ import annotations

import psycopg

from faults import rabbit
from faults.effect import Ledger
from faults.place import Place
from faults.plan import Payment
from faults.program import Send


def prepare(place: Place) -> None:
    """A table of the ids that were seen, and a queue."""
    with psycopg.connect(place.database) as connection:
        connection.execute("CREATE TABLE seen (id text PRIMARY KEY)")
    rabbit.declare(place, **place.settings["queue"])


def sender(place: Place) -> Send:
    """Publish to RabbitMQ."""
    return rabbit.sender(place)


def work(place: Place, _number: int) -> None:
    """Consume, acknowledging after the work: each of the three steps is a transaction of its own."""
    ledger = Ledger(place)

    def handle(payment: Payment) -> None:
        known = ledger.connection().execute("SELECT 1 FROM seen WHERE id = %s", [payment.id]).fetchone()
        if known:
            return
        ledger.book(payment)
        ledger.connection().execute("INSERT INTO seen VALUES (%s) ON CONFLICT DO NOTHING", [payment.id])

    rabbit.consume(place, handle, threads=2)


def failed(place: Place) -> list[str]:
    """The dead-letter queue."""
    return rabbit.ids(place, rabbit.DEAD)


def held(place: Place) -> list[str]:
    """The queue."""
    return rabbit.ids(place, rabbit.QUEUE)
