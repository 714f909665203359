"""Celery: acknowledged late, rejected when a worker is lost; on RabbitMQ with a quorum queue, or on Redis."""

from __future__ import annotations

import base64
import json
import os
import sys
from dataclasses import asdict
from typing import Any

import redis
from celery import Celery
from kombu.entity import Exchange, Queue

from faults import rabbit
from faults.effect import Ledger
from faults.place import Place, here
from faults.plan import Payment
from faults.program import Send

PLACE = here()
LEDGER = Ledger(PLACE)

app = Celery("faults", broker=PLACE.rabbitmq or PLACE.redis, backend=PLACE.redis)
app.conf.update(PLACE.settings["app"])
if PLACE.rabbitmq:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": rabbit.DEAD}
    arguments = {"x-queue-type": "quorum", **PLACE.settings["queue"], **dead}
    exchange = Exchange(rabbit.QUEUE, type="topic")
    app.conf.task_queues = [Queue(rabbit.QUEUE, exchange, routing_key=rabbit.QUEUE, queue_arguments=arguments)]
    app.conf.update(
        task_default_queue=rabbit.QUEUE, task_default_exchange=rabbit.QUEUE, task_default_routing_key=rabbit.QUEUE
    )


@app.task(name="pay", **PLACE.settings["task"], autoretry_for=(Exception,))
def pay(payment: dict[str, Any]) -> None:
    """Book one."""
    LEDGER.book(Payment(**payment))


def prepare(place: Place) -> None:
    """The queue for what RabbitMQ gives up; Celery makes its own."""
    if place.rabbitmq:
        rabbit.declare_dead(place)
        with app.connection_for_write() as connection:
            app.conf.task_queues[0](connection).declare()


def sender(_place: Place) -> Send:
    """Send a task."""

    def send(payment: Payment) -> None:
        pay.delay(asdict(payment))

    return send


def work(_place: Place, number: int) -> None:
    """Celery's own program, with two processes."""
    options = ["--concurrency", "2", "--loglevel", "WARNING", "--hostname", f"worker{number}@%h"]
    command = [sys.executable, "-m", "celery", "-A", "faults.contenders.celery", "worker", *options]
    os.execv(sys.executable, command)  # noqa: S606 - the program of a contender


def failed(place: Place) -> list[str]:
    """The tasks with the state FAILURE in the result backend, and the dead-letter queue."""
    client = redis.Redis.from_url(place.redis)
    results = [json.loads(client.get(key) or "{}") for key in client.scan_iter("celery-task-meta-*")]
    names = [result["args"][0]["id"] for result in results if result.get("status") == "FAILURE" and result.get("args")]
    return names + (rabbit.ids(place, rabbit.DEAD, name=_name) if place.rabbitmq else [])


def held(place: Place) -> list[str]:
    """What is in the queue, or was with a worker."""
    if place.rabbitmq:
        return rabbit.ids(place, rabbit.QUEUE, name=_name)
    client = redis.Redis.from_url(place.redis)
    waiting = [json.loads(text) for text in client.lrange("celery", 0, -1)]
    unacknowledged = [json.loads(text)[0] for text in client.hvals("unacked")]
    return [_name(json.loads(base64.b64decode(message["body"]))) for message in waiting + unacknowledged]


def _name(body: Any) -> str:
    return str(body[0][0]["id"])
