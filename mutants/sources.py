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
)
