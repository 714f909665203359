"""RabbitMQ by hand, with pika: publishing with confirms, consuming one message at a time, looking into a queue."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pika
import psycopg

from faults.place import Place
from faults.plan import Payment

QUEUE, DEAD = "payments", "payments.dead"
PAUSE_SECONDS = 0.2
EMPTY_SECONDS = 1.0
"""A queue that delivers nothing for so long is empty."""

Channel = Any
"""pika has no types."""


def declare(place: Place, **arguments: object) -> None:
    """Make a durable quorum queue with these arguments; and one for what it gives up, where it has a limit."""
    if "x-delivery-limit" in arguments:
        declare_dead(place)
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    with _connection(place) as connection:
        connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum", **arguments})


def declare_dead(place: Place) -> None:
    """Make the queue for what is given up."""
    with _connection(place) as connection:
        connection.channel().queue_declare(DEAD, durable=True, arguments={"x-queue-type": "quorum"})


def sender(place: Place) -> Callable[[Payment], None]:
    """Publish persistently; a call returns when the broker has confirmed."""
    connection = _connection(place, heartbeat=0)
    channel = connection.channel()
    channel.confirm_delivery()

    def send(payment: Payment) -> None:
        properties = pika.BasicProperties(
            message_id=payment.id, type="payment", delivery_mode=2, content_type="application/json"
        )
        channel.basic_publish("", QUEUE, json.dumps(asdict(payment)).encode(), properties, mandatory=True)

    return send


def consume(place: Place, handle: Callable[[Payment], None], *, threads: int) -> None:
    """Handle each message and acknowledge it then; one whose handler raises goes back to the queue."""
    running = [threading.Thread(target=_consume, args=(place, handle), daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _consume(place: Place, handle: Callable[[Payment], None]) -> None:
    while True:
        try:
            with _connection(place, heartbeat=place.settings.get("heartbeat", 60)) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=place.settings.get("prefetch", 1))
                for method, _, body in channel.consume(QUEUE):
                    try:
                        _handle(handle, Payment(**json.loads(body)))
                    except Exception:  # noqa: BLE001 - whatever a handler raises
                        time.sleep(PAUSE_SECONDS)
                        channel.basic_nack(method.delivery_tag, requeue=True)
                    else:
                        channel.basic_ack(method.delivery_tag)
        except pika.exceptions.AMQPError:
            time.sleep(PAUSE_SECONDS)


def _handle(handle: Callable[[Payment], None], payment: Payment) -> None:
    """Keep it in hand while the database is away: that is no failure of the message."""
    while True:
        try:
            handle(payment)
        except psycopg.OperationalError:
            time.sleep(PAUSE_SECONDS)
        else:
            return


def ids(place: Place, *queues: str, name: Callable[[Any], str] = lambda body: str(body["id"])) -> list[str]:
    """The messages that lie in these queues, by the ids in their bodies; they stay there."""
    found = []
    with _connection(place) as connection:
        for queue in queues:
            channel = connection.channel()
            for method, _, body in channel.consume(queue, inactivity_timeout=EMPTY_SECONDS):
                if method is None:
                    break
                found.append(name(json.loads(body)))
            channel.close()
    return found


def _connection(place: Place, **parameters: object) -> Any:
    settings = pika.URLParameters(place.rabbitmq)
    for name, value in parameters.items():
        setattr(settings, name, value)
    return pika.BlockingConnection(settings)
