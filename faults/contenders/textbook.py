"""An inbox by hand, as the textbook has it: the id goes into a table with a unique key, in the effect's transaction."""

from __future__ import annotations

from typing import Any

import psycopg

from faults import rabbit
from faults.contenders.careless import failed, held, sender
from faults.effect import Ledger
from faults.place import Place
from faults.plan import Payment

__all__ = ["failed", "held", "prepare", "sender", "work"]

INSERT = "INSERT INTO inbox VALUES (%s) ON CONFLICT DO NOTHING"


def prepare(place: Place) -> None:
    """The inbox, and a queue."""
    with psycopg.connect(place.database) as connection:
        connection.execute("CREATE TABLE inbox (id text PRIMARY KEY)")
    rabbit.declare(place, **place.settings["queue"])


def work(place: Place, _number: int) -> None:
    """Consume, acknowledging after the commit."""
    ledger = Ledger(place)

    def handle(payment: Payment) -> None:
        def is_new(connection: psycopg.Connection[Any]) -> bool:
            return connection.execute(INSERT, [payment.id]).rowcount == 1

        ledger.book(payment, is_new)

    rabbit.consume(place, handle, threads=2)
