"""The sinks: what counts as confirmed."""

from __future__ import annotations

from mutants.mutant import Mutant

CONTRACT = "tests/sinks/test_contract.py"
LOST = f"{CONTRACT}::test_a_connection_lost_between_publication_and_confirmation"
NEVER = f"{CONTRACT}::test_what_can_never_be_published_is_dead_with_the_reason"
CONFIRMATION = "tests/sinks/test_confirmation.py"
COPY = f"{CONFIRMATION}::test_a_copy_is_dropped_by_a_broker_that_knows_its_id"

SINKS: tuple[Mutant, ...] = (
    Mutant(
        name="Kafka: the client repeats under no number",
        file="sinks/kafka.py",
        old='"enable.idempotence": True',
        new='"enable.idempotence": False',
        test=f"{LOST}[kafka]",
        store="sqlite",
    ),
    Mutant(
        name="Kafka: no replica has confirmed",
        file="sinks/kafka.py",
        old='"enable.idempotence": True,\n            "acks": "all"',
        new='"enable.idempotence": False,\n            "acks": "0"',
        test=f"{LOST}[kafka]",
        store="sqlite",
    ),
    Mutant(
        name="Kafka: no answer is a confirmation",
        file="sinks/kafka.py",
        old='error = answers[0] if answers else "no answer"',
        new="error = answers[0] if answers else None",
        test=f"{CONFIRMATION}::test_no_answer_is_no_confirmation",
    ),
    Mutant(
        name="RabbitMQ: messages stay in memory",
        file="sinks/rabbitmq.py",
        old="DeliveryMode.PERSISTENT",
        new="DeliveryMode.NOT_PERSISTENT",
        test=f"{CONFIRMATION}::test_rabbitmq_writes_messages_to_its_disk",
    ),
    Mutant(
        name="RabbitMQ: nobody waits for the confirmation",
        file="sinks/rabbitmq.py",
        old="publisher_confirms=True, on_return_raises=True",
        new="publisher_confirms=False",
        test=f"{CONFIRMATION}::test_what_rabbitmq_refuses_is_not_confirmed",
    ),
)
