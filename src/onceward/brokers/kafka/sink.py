"""Kafka as the destination: acknowledged by every replica in sync, by an idempotent producer.

The client itself repeats what was not confirmed, under a number by which the broker knows a copy; what it gives up on
after `CONFIRM_SECONDS` is the relay's again, under the same id.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from onceward.brokers.connection import Connection
from onceward.brokers.kafka.librdkafka import REFUSED, ErrorCallback, client_configuration
from onceward.domain.address import Address
from onceward.domain.headers import fields_of
from onceward.message import Message
from onceward.retry import Reject

CONFIRM_SECONDS = 5.0
_NEVER = (
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - so the client spells its own errors
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
)


class KafkaSink:
    """`kafka://host:9092?topic=orders`; without a topic it is the message's type.

    The id and the type are the headers `id` and `type`; the record's key is the message's, or its id where it has none.
    """

    form = "kafka://host:9092?topic=&sasl=plain"

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._topic, self._where = address["topic"], address.shown
        self._errors = ErrorCallback(*REFUSED)
        self._settings = {
            **client_configuration(address, self._errors),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": int(CONFIRM_SECONDS * 1000),
            "topic.metadata.propagation.max.ms": 2000,  # one that was made a moment ago is not known at once
        }
        self._connection: Connection[Any] = Connection(
            lambda: Producer(self._settings), lambda producer: producer.flush(CONFIRM_SECONDS)
        )

    def publish(self, message: Message) -> None:
        topic, answers = self._topic or message.type, []
        producer = self._connection.get()
        headers = [(name, value.encode()) for name, value in fields_of(message).items()]
        try:
            producer.produce(
                topic,
                message.body,
                key=message.key or message.id,
                headers=headers,
                on_delivery=lambda error, _: answers.append(error),
            )
        except (KafkaException, BufferError) as trouble:
            self._reject_permanent(trouble.args[0] if isinstance(trouble, KafkaException) else None, topic, producer)
            raise ConnectionError(f"{self._where} did not confirm: {trouble}") from trouble
        # The client answers in its own time, a little after the limit that it was given.
        limit = time.monotonic() + 2 * CONFIRM_SECONDS
        while not answers and time.monotonic() < limit:
            producer.poll(0.05)
        error = answers[0] if answers else "no answer"
        if error is not None:
            self._reject_permanent(error, topic, producer)
            # "Timed out" is all that it says of a connection that was refused.
            raise ConnectionError(f"{self._where} did not confirm: {self._errors.permanent or error}")
        self._errors.permanent = ""

    def close(self) -> None:
        self._connection.close()

    def _reject_permanent(self, error: Any, topic: str, producer: Any) -> None:
        """Raise `Reject` for what waiting does not cure; after an error that ends the producer the next one is new."""
        if not isinstance(error, KafkaError):
            return
        if error.fatal():
            self._connection.forget(producer)
        if error.code() in _NEVER:
            raise Reject(f"{self._where}: {error.str()} for the topic {topic!r}; correct that, then redrive")
