"""The sinks: what counts as confirmed."""

from __future__ import annotations

from mutants.mutant import Mutant

CONTRACT = "tests/sinks/test_contract.py::TestSinks"
LOST = f"{CONTRACT}::test_a_connection_lost_between_publication_and_confirmation"
NEVER = f"{CONTRACT}::test_what_can_never_be_published_is_dead_with_the_reason"
CONFIRMATION = "tests/sinks/test_confirmation.py"
KEY = "tests/sinks/test_streams.py::test_the_key_goes_along"
COPY = f"{CONFIRMATION}::test_a_copy_is_dropped_by_a_broker_that_knows_its_id"

SINKS: tuple[Mutant, ...] = (
    Mutant(
        name="Kafka: the client repeats under no number",
        file="brokers/kafka/sink.py",
        old='"enable.idempotence": True',
        new='"enable.idempotence": False',
        test=f"{LOST}[kafka]",
        store="sqlite",
    ),
    Mutant(
        name="Kafka: no replica has confirmed",
        file="brokers/kafka/sink.py",
        old='"enable.idempotence": True,\n            "acks": "all"',
        new='"enable.idempotence": False,\n            "acks": "0"',
        test=f"{LOST}[kafka]",
        store="sqlite",
    ),
    Mutant(
        name="what is sent under a key goes out in any order",
        file="steps/claim.py",
        old="return sorted(batch, key=IN_KEY)",
        new="return sorted(batch, key=IN_KEY, reverse=True)",
        test="tests/outbox/test_relay.py::test_messages_of_a_key_go_out_in_order[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="Kafka: no answer is a confirmation",
        file="brokers/kafka/sink.py",
        old='error = answers[0] if answers else "no answer"',
        new="error = answers[0] if answers else None",
        test=f"{CONFIRMATION}::test_no_answer_is_no_confirmation",
    ),
    Mutant(
        name="RabbitMQ: messages stay in memory",
        file="brokers/rabbitmq.py",
        old="DeliveryMode.PERSISTENT",
        new="DeliveryMode.NOT_PERSISTENT",
        test=f"{CONFIRMATION}::test_rabbitmq_writes_messages_to_its_disk",
    ),
    Mutant(
        name="RabbitMQ: nobody waits for the confirmation",
        file="brokers/rabbitmq.py",
        old="publisher_confirms=True, on_return_raises=True",
        new="publisher_confirms=False",
        test=f"{CONFIRMATION}::test_what_rabbitmq_refuses_is_not_confirmed",
    ),
    Mutant(
        name="RabbitMQ: what no queue takes is published",
        file="brokers/rabbitmq.py",
        old="mandatory=True",
        new="mandatory=False",
        test=f"{NEVER}[rabbit]",
        store="sqlite",
    ),
    Mutant(
        name="NATS: a copy has an id of its own",
        file="brokers/nats.py",
        old='headers["Nats-Msg-Id"] = headers.pop("id")',
        new='headers["Nats-Msg-Id"] = headers.pop("id") + __import__("uuid").uuid4().hex',
        test=f"{COPY}[nats]",
    ),
    Mutant(
        name="NATS: nobody waits for the stream",
        file="brokers/nats.py",
        old="await stream.publish(subject",
        new="await connection.publish(subject",
        test=f"{NEVER}[nats]",
        store="sqlite",
    ),
    Mutant(
        name="SQS: a copy has a dedupe id of its own",
        file="brokers/sqs.py",
        old='words["MessageDeduplicationId"] = _token(message.id)',
        new='words["MessageDeduplicationId"] = __import__("uuid").uuid4().hex',
        test=f"{COPY}[sqs]",
    ),
    Mutant(
        name="SQS: the messages of a key are groups of their own",
        file="brokers/sqs.py",
        old="_token(message.key or message.id)",
        new="_token(message.id)",
        test=KEY,
        store="sqlite",
    ),
    Mutant(
        name="Pulsar: the messages of a key are spread over partitions",
        file="brokers/pulsar.py",
        old="fields_of(message), partition_key=message.key)",
        new="fields_of(message))",
        test="tests/sources/test_pulsar.py::test_the_key_goes_along",
        store="sqlite",
    ),
    Mutant(
        name="Pub/Sub: the messages of a key have no order",
        file="brokers/pubsub.py",
        old='ordering_key=message.key or ""',
        new='ordering_key=""',
        test=KEY,
        store="sqlite",
    ),
    Mutant(
        name="Kafka: the messages of a key are spread over partitions",
        file="brokers/kafka/sink.py",
        old="key=message.key or message.id",
        new="key=message.id",
        test=KEY,
        store="sqlite",
    ),
    Mutant(
        name="MQTT: nobody waits for the broker",
        file="brokers/mqtt.py",
        old="qos=1, properties",
        new="qos=0, properties",
        test=f"{NEVER}[mqtt]",
        store="sqlite",
    ),
    Mutant(
        name="MQTT: a refusal is a confirmation",
        file="brokers/mqtt.py",
        old='if answer != "Success":',
        new="if not answer:",
        test=f"{CONFIRMATION}::test_whatever_mqtt_answers_but_success_is_no_confirmation",
    ),
    Mutant(
        name="Redis: the client repeats behind the relay's back",
        file="brokers/redis.py",
        old="Retry(NoBackoff(), 0)",
        new="Retry(NoBackoff(), 3)",
        test=f"{LOST}[redis]",
        store="sqlite",
    ),
    Mutant(
        name="HTTP: a redirection is a confirmation",
        file="sinks/http.py",
        old="_SUCCESS = range(200, 300)",
        new="_SUCCESS = range(200, 400)",
        test="tests/outbox/test_http_sink.py::test_tried_again_later[sqlite-def-301]",
        store="sqlite",
    ),
    Mutant(
        name="another inbox gets no keys",
        file="sinks/inbox.py",
        old="            key=message.key,\n",
        new="",
        test="tests/outbox/test_loop.py::test_all_that_a_message_is_goes_over",
        store="sqlite",
    ),
)
