"""onceward: stored first and handled by workers, direct from a broker, and inline with `process`."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from faults import rabbit
from faults.effect import book
from faults.place import Place
from faults.plan import Payment
from faults.program import PAUSE_SECONDS, Send
from onceward import Inbox, Message, RetryPolicy, Settings, StoreError, execute

SOURCE, TYPE = "bank", "payment"
UNFINISHED = ("due", "running", "retrying", "scheduled", "waiting", "unhandled")


def inbox_of(place: Place) -> Inbox:
    """The inbox of a process, with its one handler."""
    settings = Settings(
        lease=timedelta(seconds=place.lease_seconds),
        store_first_for=timedelta(seconds=place.settings["store_first_for_seconds"]),
        statement_limit=timedelta(seconds=5),
    )
    inbox = Inbox(place.database, settings=settings)
    retry = RetryPolicy(
        attempts=place.settings["attempts"], first=timedelta(seconds=place.settings["first_retry_seconds"]), factor=1
    )

    @inbox.on(TYPE, key="account", retry=retry)
    def handle(message: Message, tx: Any) -> None:
        book(place, Payment(**message.data), lambda sql, values: execute(tx, sql, values))

    if place.settings["mode"] == "direct":
        inbox.add_source(f"{place.rabbitmq}?queue={rabbit.QUEUE}", source=SOURCE, mode="direct")
    return inbox


def prepare(place: Place) -> None:
    """Its tables, and a queue where a broker is in front of it."""
    if place.rabbitmq:
        rabbit.declare(place, **place.settings["queue"])
    with inbox_of(place) as inbox:
        inbox.migrate()


def sender(place: Place) -> Send:
    """Store each payment with `receive`, or publish it to the broker in front."""
    if place.rabbitmq:
        return rabbit.sender(place)
    inbox = inbox_of(place)

    def send(payment: Payment) -> None:
        inbox.receive(source=SOURCE, id=payment.id, type=TYPE, data=asdict(payment))

    return send


def work(place: Place, _number: int) -> None:
    """Workers; and beside them, in inline mode, a consumer that calls `process` and acknowledges then."""
    with inbox_of(place) as inbox:
        if place.settings["mode"] == "inline":
            threading.Thread(target=_process, args=(place, inbox), daemon=True).start()
        while True:
            try:
                inbox.run(concurrency=2)
            except StoreError:  # away while it started
                time.sleep(PAUSE_SECONDS)
            else:
                return


def _process(place: Place, inbox: Inbox) -> None:
    def handle(payment: Payment) -> None:
        while True:
            try:
                inbox.process(source=SOURCE, id=payment.id, type=TYPE, data=asdict(payment))
            except StoreError:  # it stays in hand until the database takes it
                time.sleep(PAUSE_SECONDS)
            else:
                return

    rabbit.consume(place, handle, threads=1)


def failed(place: Place) -> list[str]:
    """What `onceward list --status dead` shows."""
    return _listed(place, "dead")


def held(place: Place) -> list[str]:
    """What is not finished, in the inbox or in front of it."""
    waiting = rabbit.ids(place, rabbit.QUEUE) if place.rabbitmq else []
    return waiting + [name for status in UNFINISHED for name in _listed(place, status)]


def _listed(place: Place, status: str) -> list[str]:
    with inbox_of(place) as inbox:
        return [row.id for row in inbox.admin.messages(status=status, limit=1000)]
