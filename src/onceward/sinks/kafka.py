"""Kafka as the destination: acknowledged by every replica in sync, by an idempotent producer.

The client itself repeats what was not confirmed, under a number by which the broker knows a copy; what it gives up on
after `CONFIRM_SECONDS` is the relay's again, under the same id.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from onceward.brokers.librdkafka import Hearing, client_configuration
from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject
from onceward.sinks.headers import fields_of

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError as error:
    raise ConfigurationError("Kafka needs: pip install 'onceward[kafka]'") from error

CONFIRM_SECONDS = 5.0
FORM = "kafka://host:9092?topic=&sasl=plain"
REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001 - so the client spells its own errors
"""What a client goes on trying by itself, though no patience helps."""
_NEVER = (
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
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

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._topic, self._where = address["topic"], address.shown
        self._hearing = Hearing(*REFUSED)
        self._settings = {
            **client_configuration(address, self._hearing),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": int(CONFIRM_SECONDS * 1000),
            "topic.metadata.propagation.max.ms": 2000,  # one that was made a moment ago is not known at once
        }
        self._guard = threading.Lock()
        self._producer: Any = None

    def publish(self, message: Message) -> None:
        topic, answers = self._topic or message.type, []
        producer = self._connected()
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
            self._judge(trouble.args[0] if isinstance(trouble, KafkaException) else None, topic)
            raise ConnectionError(f"{self._where} did not confirm: {trouble}") from trouble
        # The client answers in its own time, a little after the limit that it was given.
        limit = time.monotonic() + 2 * CONFIRM_SECONDS
        while not answers and time.monotonic() < limit:
            producer.poll(0.05)
        error = answers[0] if answers else "no answer"
        if error is not None:
            self._judge(error, topic)
            # "Timed out" is all that it says of a connection that was refused.
            raise ConnectionError(f"{self._where} did not confirm: {self._hearing.hopeless or error}")
        self._hearing.hopeless = ""

    def close(self) -> None:
        with self._guard:
            leaving, self._producer = self._producer, None
        if leaving is not None:
            leaving.flush(CONFIRM_SECONDS)

    def _connected(self) -> Any:
        with self._guard:
            if self._producer is None:
                self._producer = Producer(self._settings)
            return self._producer

    def _judge(self, error: Any, topic: str) -> None:
        """What waiting does not cure is dead; after an error that ends the producer the next one is new."""
        if not isinstance(error, KafkaError):
            return
        if error.fatal():
            with self._guard:
                self._producer = None
        if error.code() in _NEVER:
            raise Reject(f"{self._where}: {error.str()} for the topic {topic!r}; cure that, then redrive")
