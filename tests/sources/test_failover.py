"""R72: a standby that lagged is promoted, and Kafka still has what it never heard of: it is read again by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from onceward.brokers.consumer import MODES, Mode
from onceward.testing.broker_suite.reading import names, publish, settled
from tests.contract.harness import Shop
from tests.servers import FaultProxy, PostgresServer
from tests.sources.conftest import reading
from tests.sources.kafka_broker import KafkaBroker
from tests.waiting import wait_until

COUNT, BEFORE, LOST = 240, 60, 30
"""Messages in all; handled before the standby begins to lag; handled and acknowledged while it does."""
EFFECTS = "SELECT count(*) FROM effects"


class Pair:
    """A primary and its asynchronous standby, whose replication passes a proxy."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, replication: FaultProxy) -> None:
        self.primary, self.standby, self.replication = primary, standby, replication
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        self.url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=5"

    def fail_over(self) -> None:
        """The primary dies, and what the standby had not heard dies with it."""
        self.primary.kill()
        self.replication.cut()
        with closing(psycopg.connect(self.standby.url(), autocommit=True)) as connection:
            connection.execute("SELECT pg_promote(true)")


@contextmanager
def pair() -> Iterator[Pair]:
    with (
        PostgresServer() as primary,
        PostgresServer() as standby,
        FaultProxy("127.0.0.1", primary.port) as replication,
    ):
        standby.follow(primary, through=replication.port)
        yield Pair(primary, standby, replication)


def effects_at(server: PostgresServer) -> int:
    """How many are there; none before the tables have arrived."""
    with psycopg.connect(server.url()) as connection:
        found = connection.execute("SELECT to_regclass('effects')").fetchone()
        if not found or found[0] is None:
            return 0
        row = connection.execute(EFFECTS).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.needs("PostgreSQL")
@pytest.mark.parametrize("mode", MODES)
def test_what_a_lagging_standby_never_heard_of_is_read_again(kafka_broker: KafkaBroker, mode: Mode) -> None:
    """What was committed and acknowledged is gone with the primary; in the end all is there, and nothing twice."""
    ids = names(COUNT)
    with pair() as servers, Shop(servers.url, "def") as shop:
        shop.handle()
        shop.inbox.add_source(kafka_broker.url(), source="broker", mode=mode, batch=5)
        halfway = threading.Event()

        def produce() -> None:
            publish(kafka_broker, *ids[:BEFORE])
            halfway.wait()
            for one in ids[BEFORE:]:
                publish(kafka_broker, one)

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            with reading(shop):
                wait_until(lambda: effects_at(servers.standby) == BEFORE)
                servers.replication.freeze()
                halfway.set()
                wait_until(lambda: effects_at(servers.primary) >= BEFORE + LOST)
                settled_there = COUNT - kafka_broker.unsettled()
                had = effects_at(servers.primary)
                servers.fail_over()
                lost = had - effects_at(servers.standby)
                producer.join()
                wait_until(lambda: sorted(set(shop.effects())) == ids, timeout=120, message="every effect")
                settled(kafka_broker)
        finally:
            halfway.set()
            producer.join()
        assert lost >= LOST
        assert settled_there > BEFORE
        assert sorted(shop.effects()) == ids
