"""The sources: what is acknowledged, in which order, and what is kept."""

from __future__ import annotations

from mutants.mutant import Mutant

INTAKE = "tests/unit/test_intake.py::test_a_stop_half_way_accepts_what_is_kept_and_releases_the_rest"
SETTLING = "tests/sources/test_contract_settling.py"
HALF_WAY = f"{SETTLING}::test_an_inline_source_that_stops_half_way_settles_what_it_has_handled"
OLD_HANDLES = f"{SETTLING}::test_a_delivery_of_a_lost_connection_settles_itself_or_nothing"
RELEASED = f"{SETTLING}::test_what_is_released_comes_again"
FIRST = "tests/sources/test_contract.py::test_each_message_takes_effect_once_and_is_settled"

SOURCES: tuple[Mutant, ...] = (
    Mutant(
        name="a stop half-way accepts the whole batch",
        file="sources/intake.py",
        old="await self.source.accept(arrivals[:stored])",
        new="await self.source.accept(arrivals)",
        test=INTAKE,
    ),
    Mutant(
        name="a stop half-way counts what was not stored",
        file="sources/intake.py",
        old="                if stopping.is_set():\n                    return done",
        new="                if stopping.is_set():\n                    return len(messages)",
        test=f"{HALF_WAY}[redis-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a stop half-way keeps the rest from everybody",
        file="sources/intake.py",
        old="            await self.source.release(arrivals[stored:])",
        new="            return",
        test=INTAKE,
    ),
    Mutant(
        name="Kafka: what was read is committed by itself",
        file="sources/kafka.py",
        old='"enable.auto.commit": False',
        new='"enable.auto.commit": True',
        test=f"{HALF_WAY}[kafkamock-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="Kafka: one record too many is committed",
        file="sources/kafka.py",
        old="= place.offset + 1",
        new="= place.offset + 2",
        test=f"{HALF_WAY}[kafkamock-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="Kafka: of what is released only the last is read again",
        file="sources/kafka.py",
        old="for place in reversed(places):",
        new="for place in places:",
        test=f"{RELEASED}[kafkamock-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="Kafka: what its producer took back is read",
        file="sources/kafka.py",
        old='"isolation.level": "read_committed"',
        new='"isolation.level": "read_uncommitted"',
        test="tests/sources/test_kafka.py::test_what_a_producer_takes_back_is_never_read",
        store="sqlite",
    ),
    Mutant(
        name="NATS: an acknowledgement covers everything before it",
        file="sources/nats.py",
        old="AckPolicy.EXPLICIT",
        new="AckPolicy.ALL",
        test=f"{OLD_HANDLES}[nats-postgres]",
    ),
    Mutant(
        name="NATS: what is delivered is acknowledged",
        file="sources/nats.py",
        old="AckPolicy.EXPLICIT",
        new="AckPolicy.NONE",
        test=f"{HALF_WAY}[nats-postgres]",
        store="postgres",
    ),
    Mutant(
        name="NATS: what is released is acknowledged",
        file="sources/nats.py",
        old="[arrival.handle.nak for",
        new="[arrival.handle.ack for",
        test=f"{RELEASED}[nats-postgres]",
    ),
    Mutant(
        name="Kafka: what was there before the reader is passed over",
        file="sources/kafka.py",
        old='"auto.offset.reset": "earliest"',
        new='"auto.offset.reset": "latest"',
        test=f"{HALF_WAY}[kafkamock-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="Redis: what is read is acknowledged",
        file="sources/redis.py",
        old="count=limit, block=milliseconds\n",
        new="count=limit, block=milliseconds, noack=True\n",
        test=f"{HALF_WAY}[redis-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="Redis: what was there before the reader is passed over",
        file="sources/redis.py",
        old='self._group, "0", mkstream',
        new='self._group, "$", mkstream',
        test=f"{HALF_WAY}[redis-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="Redis: a consumer takes what is pending along",
        file="sources/redis.py",
        old="            if not pending:\n",
        new="            if pending is not None:\n",
        test="tests/sources/test_redis.py::test_a_consumer_that_leaves_tidies_up_unless_something_is_pending",
    ),
    Mutant(
        name="MQTT: what is delivered is acknowledged",
        file="sources/mqtt.py",
        old="manual_ack=True",
        new="manual_ack=False",
        test=f"{HALF_WAY}[mqtt-postgres]",
        store="postgres",
    ),
    Mutant(
        name="MQTT: each connection begins a new session",
        file="sources/mqtt.py",
        old="clean=False",
        new="clean=True",
        test=f"{OLD_HANDLES}[mqtt-postgres]",
    ),
    Mutant(
        name="RabbitMQ: what is delivered is acknowledged",
        file="sources/rabbitmq.py",
        old="queue.consume(arrived)",
        new="queue.consume(arrived, no_ack=True)",
        test=f"{HALF_WAY}[rabbit-sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="RabbitMQ: what is released is dropped",
        file="sources/rabbitmq.py",
        old="nack(requeue=True)",
        new="nack(requeue=False)",
        test=f"{RELEASED}[rabbit-sqlite]",
    ),
    Mutant(
        name="RabbitMQ: the queue that is made is on one machine only",
        file="sources/rabbitmq.py",
        old="durable=True, arguments=QUORUM",
        new="durable=True",
        test="tests/sources/test_rabbitmq.py::test_a_queue_that_is_not_there_is_made_and_made_again",
        store="sqlite",
    ),
    Mutant(
        name="SQS: a deletion that failed is one",
        file="sources/sqs.py",
        old='if failed := answer.get("Failed"):',
        new='if failed := answer.get("Failed", [])[:0]:',
        test="tests/sources/test_sqs.py::test_a_deletion_that_fails_in_part_is_trouble_with_the_broker",
    ),
    Mutant(
        name="SQS: what is in hand is shown to others",
        file="sources/sqs.py",
        old="_batches(sorted(self._held), {",
        new="_batches(sorted(self._held)[:0], {",
        test="tests/sources/test_deadlines.py::test_what_is_in_hand_is_given_to_nobody_else[sqs]",
    ),
    Mutant(
        name="Pub/Sub: what is in hand is given to others",
        file="sources/pubsub.py",
        old="await self._each(sorted(self._held), ",
        new="await self._each([], ",
        test="tests/sources/test_deadlines.py::test_what_is_in_hand_is_given_to_nobody_else[pubsub]",
    ),
)
