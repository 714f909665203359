"""Huey on Redis: retries, and a handler for tasks that were interrupted, as its documentation recommends."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import asdict
from typing import Any

from huey import RedisHuey
from huey.signals import SIGNAL_INTERRUPTED

from faults.effect import Ledger
from faults.place import Place, here
from faults.plan import Payment
from faults.program import Send

PLACE = here()
LEDGER = Ledger(PLACE)

queue = RedisHuey("faults", url=PLACE.redis)


@queue.task(name="pay", **PLACE.settings["task"])
def pay(payment: dict[str, Any]) -> None:
    """Book one."""
    LEDGER.book(Payment(**payment))


@queue.signal(SIGNAL_INTERRUPTED)
def enqueue_again(_signal: str, task: Any, *_: Any, **__: Any) -> None:
    """What a shutdown interrupted."""
    queue.enqueue(task)


def prepare(_place: Place) -> None:
    """It needs nothing."""


def sender(_place: Place) -> Send:
    """Enqueue a task."""

    def send(payment: Payment) -> None:
        pay(asdict(payment))

    return send


def work(_place: Place, _number: int) -> None:
    """Huey's own program, with two threads."""
    options = ["faults.contenders.huey.queue", "--workers", "2", "--worker-type", "thread", "--quiet"]
    os.execv(sys.executable, [sys.executable, "-m", "huey.bin.huey_consumer", *options])  # noqa: S606 - the same


def failed(_place: Place) -> list[str]:
    """The errors in its result store: they name the payment in their text."""
    results = [queue.serializer.deserialize(value) for value in queue.storage.result_items().values()]
    errors = [getattr(result, "metadata", {}).get("error", "") for result in results]
    return [found[0] for error in errors if (found := re.search(r"pay-\d+", error))]


def held(_place: Place) -> list[str]:
    """What is enqueued or scheduled."""
    return [task.args[0]["id"] for task in [*queue.pending(), *queue.scheduled()]]
