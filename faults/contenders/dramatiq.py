"""Dramatiq on RabbitMQ, with publisher confirms: acknowledged after the actor, retried, then in its dead-letter queue."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from faults import rabbit
from faults.effect import Ledger
from faults.place import Place, here
from faults.plan import Payment
from faults.program import Send

PLACE = here()
LEDGER = Ledger(PLACE)

broker = RabbitmqBroker(url=PLACE.rabbitmq, confirm_delivery=True)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=rabbit.QUEUE, **PLACE.settings["actor"])
def pay(payment: dict[str, Any]) -> None:
    """Book one."""
    LEDGER.book(Payment(**payment))


def prepare(_place: Place) -> None:
    """Its queues."""
    broker.declare_queue(rabbit.QUEUE, ensure=True)


def sender(_place: Place) -> Send:
    """Send a message."""

    def send(payment: Payment) -> None:
        pay.send(asdict(payment))

    return send


def work(_place: Place, _number: int) -> None:
    """Dramatiq's own program, with two threads."""
    command = [sys.executable, "-m", "dramatiq", "faults.contenders.dramatiq", "--processes", "1", "--threads", "2"]
    os.execv(sys.executable, command)  # noqa: S606 - the program of a contender


def failed(place: Place) -> list[str]:
    """The dead-letter queue."""
    return rabbit.ids(place, f"{rabbit.QUEUE}.XQ", name=_name)


def held(place: Place) -> list[str]:
    """The queue, and that of the delayed."""
    return rabbit.ids(place, rabbit.QUEUE, f"{rabbit.QUEUE}.DQ", name=_name)


def _name(body: Any) -> str:
    return str(body["args"][0]["id"])
