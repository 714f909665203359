"""AWS Powertools' idempotency with its Redis persistence, around the function of a consumer of RabbitMQ."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

from faults import rabbit
from faults.contenders.careless import failed, held, sender
from faults.effect import Ledger
from faults.place import Place
from faults.plan import Payment

__all__ = ["failed", "held", "prepare", "sender", "work"]


class Invocation:
    """Stands in for the context that Lambda gives: the time that a call has left, which ends its claim."""

    def __init__(self, seconds: float) -> None:
        self._milliseconds = int(seconds * 1000)

    def get_remaining_time_in_millis(self) -> int:
        """As Lambda's own at the begin of a call."""
        return self._milliseconds


def prepare(place: Place) -> None:
    """A queue."""
    rabbit.declare(place, **place.settings["queue"])


def work(place: Place, _number: int) -> None:
    """Consume, acknowledging when the decorated function has returned."""
    ledger = Ledger(place)
    store = RedisCachePersistenceLayer(client=redis.Redis.from_url(place.redis, decode_responses=True))
    config = IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=place.settings["expires_after_seconds"])
    config.register_lambda_context(Invocation(place.lease_seconds))

    @idempotent_function(data_keyword_argument="payment", config=config, persistence_store=store)
    def pay(payment: dict[str, Any]) -> None:
        ledger.book(Payment(**payment))

    def handle(payment: Payment) -> None:
        while True:
            try:
                pay(payment=asdict(payment))
            except IdempotencyAlreadyInProgressError:  # in another process, or in one that died: until it is over
                time.sleep(rabbit.PAUSE_SECONDS)
            else:
                return

    rabbit.consume(place, handle, threads=2)
