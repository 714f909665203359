"""What only Kafka has: partitions that move, offsets, keys, tombstones, and passwords."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from onceward import ConfigurationError, Message
from onceward.admin.doctor import Finding, examine
from onceward.brokers.consumer import MODES, Mode
from onceward.brokers.kafka import KafkaTopic
from onceward.brokers.protocol import Arrival, open_source
from onceward.testing.broker_suite.reading import PAID, names, publish, settled, taken
from tests.contract.harness import QUICK, Shop
from tests.servers import KafkaServer
from tests.sources.conftest import reading
from tests.sources.kafka_broker import PARTITIONS, KafkaBroker
from tests.waiting import wait_until, wait_until_async


def test_partitions_that_move_lose_and_double_nothing_and_keep_the_order(shop: Shop, kafka_broker: KafkaBroker) -> None:
    """Readers come and go in the middle of batches (HZ-43)."""
    seen: list[tuple[str, int]] = []

    def keep(message: Message, tx: Any) -> None:
        del tx
        seen.append((message.key or "", message.data["number"]))

    shops = [shop, *(shop.another(settings=QUICK) for _ in range(2))]
    for one in shops:
        one.inbox.on("numbered", key="header:kafka-key")(keep)
        one.inbox.add_source(kafka_broker.url(), source="broker", batch=4)

    def produce(first: int) -> None:
        for number in range(first, first + 60):
            key, headers = f"k{number % PARTITIONS}", {"id": f"n-{number}", "type": "numbered"}
            body = json.dumps({"number": number}).encode()
            kafka_broker.produce(body, key=key, headers=headers, partition=number % PARTITIONS)

    produce(0)
    with reading(shops[0]):
        wait_until(lambda: seen)
        with reading(shops[1]):
            produce(60)
            with reading(shops[2]):
                produce(120)
                settled(kafka_broker)
            produce(180)
        settled(kafka_broker)
        wait_until(lambda: len(seen) == 240)
    for number in range(PARTITIONS):
        assert [n for key, n in seen if key == f"k{number}"] == list(range(number, 240, PARTITIONS))


def test_no_offset_is_committed_for_a_partition_that_went_away(kafka_broker: KafkaBroker) -> None:
    """Whoever has it now may be further, or may not: it is theirs to say (HZ-43)."""
    for partition in range(PARTITIONS):
        kafka_broker.produce(b"{}", partition=partition)

    async def lose() -> None:
        first, second = KafkaTopic(kafka_broker.url()), KafkaTopic(kafka_broker.url())
        await first.open()
        held = await taken(first, PARTITIONS)
        await second.open()
        theirs: list[Arrival] = []
        while not theirs:  # both must ask, or nothing moves
            await first.next(1, 0.1)
            theirs = await second.next(100, 0.1)
        gone = {arrival.handle[:2] for arrival in theirs}
        await first.ack(held)
        assert kafka_broker.unsettled() == len(theirs)
        assert all(first._ours.get(where) is None for where in gone)
        await second.ack(theirs)
        await second.close()
        await first.close()

    asyncio.run(lose())
    assert kafka_broker.unsettled() == 0


def test_what_is_nacked_is_read_again_by_the_same_reader(kafka_broker: KafkaBroker) -> None:
    publish(kafka_broker, *names(6))

    async def read() -> list[str | None]:
        source = KafkaTopic(kafka_broker.url())
        await source.open()
        given = await taken(source, 6)
        await source.ack(given[:2])
        await source.nack(given[2:])
        again = await taken(source, 4)
        await source.ack(again)
        await source.close()
        return [arrival.id for arrival in again]

    assert asyncio.run(read()) == names(6)[2:]
    assert kafka_broker.unsettled() == 0


def test_a_topic_that_is_not_there_yet_is_waited_for_and_one_made_again_begins_anew(
    shop: Shop, kafka_broker: KafkaBroker
) -> None:
    shop.inbox.add_source(kafka_broker.url(), source="broker", id="position", type=f"={PAID}")
    kafka_broker.delete_topic()
    with reading(shop):
        kafka_broker.make_topic()
        kafka_broker.produce(b"1")
        wait_until(lambda: len(shop.effects()) == 1)
        settled(kafka_broker)
    kafka_broker.delete_topic()
    kafka_broker.make_topic()
    kafka_broker.produce(b"2")  # another record under the same offset
    with reading(shop):
        wait_until(lambda: len(shop.effects()) == 2)
    assert len(set(shop.effects())) == 2
    assert shop.inbox.admin.quarantine() == []


def test_what_a_producer_takes_back_is_never_read(shop: Shop, kafka_broker: KafkaBroker) -> None:
    """A record of a transaction is a message when that is committed, and what comes after it waits for that."""
    shop.inbox.add_source(kafka_broker.url(), source="broker")
    for name, end in (("aborted", "abort_transaction"), ("committed", "commit_transaction")):
        producer = kafka_broker.transaction(f"{kafka_broker.topic}-{name}")
        producer.produce(kafka_broker.topic, b"{}", headers={"id": name, "type": PAID}, partition=0)
        producer.flush(30)
        getattr(producer, end)(30)
    publish(kafka_broker, "m-1")
    with reading(shop):
        wait_until(lambda: "m-1" in shop.effects())
    assert shop.effects() == ["committed", "m-1"]


def test_the_offset_is_the_place_within_a_key_where_asked_for(shop: Shop, kafka_broker: KafkaBroker) -> None:
    shop.inbox.add_source(f"{kafka_broker.url()}&order=offset", source="broker", type="=nobody handles it")
    for number in range(3):
        kafka_broker.produce(b"{}", headers={"id": f"n-{number}"})
    with reading(shop):
        settled(kafka_broker)
    assert [row[0] for row in shop.sql("SELECT place FROM onceward_queue ORDER BY seq")] == [0, 1, 2]


def test_keys_topics_and_tombstones_are_headers(shop: Shop, kafka_broker: KafkaBroker) -> None:
    shop.handle(kafka_broker.topic, raw=True, key="header:kafka-key")
    shop.inbox.add_source(kafka_broker.url(), source="broker", type="header:kafka-topic")
    kafka_broker.produce(None, key="customer-7", headers={"id": "m-1"})
    kafka_broker.produce(b"\xff", key=b"\xfe", headers={"id": "m-2", "Odd": b"\xfd"})
    with reading(shop):
        settled(kafka_broker)
        wait_until(lambda: shop.effects() == ["m-1", "m-2"])
    gone, odd = (shop.detail(shop.inbox.admin.find("broker", one)[0]) for one in ("m-1", "m-2"))
    assert (gone.body, gone.key, gone.headers["kafka-tombstone"]) == (b"", "customer-7", "true")
    assert (odd.body, odd.key, odd.headers["odd"]) == (b"\xff", "\\xfe", "\\xfd")


def test_a_reader_that_was_silent_for_too_long_reads_again(shop: Shop, kafka_broker: KafkaBroker) -> None:
    """The group has given its partitions away; what it then stores is known to whoever has them, and the reverse."""
    publish(kafka_broker, *names(4))
    shop.inbox.add_source(kafka_broker.url(), source="broker", batch=2)
    source: Any = shop.inbox.ingress.consumers[0].source
    source._settings |= {"max.poll.interval.ms": 2000}
    receive, silent = shop.inbox.receive_many, [3.0]

    def slowly(messages: Any) -> Any:
        receipts = receive(messages)
        if silent:
            asyncio.run(asyncio.sleep(silent.pop()))
        return receipts

    shop.inbox.receive_many = slowly  # type: ignore[method-assign]
    with reading(shop):
        settled(kafka_broker)
        wait_until(lambda: Counter(shop.effects()) == Counter(names(4)))


@pytest.mark.parametrize("mode", MODES)
def test_the_doctor_counts_readers_and_partitions(shop: Shop, kafka_server: KafkaServer, *, mode: Mode) -> None:
    broker = KafkaBroker(kafka_server, partitions=1)
    shop.inbox.add_source(broker.url(), source="broker", mode=mode)

    def found() -> list[Finding]:
        return [finding for finding in examine(shop.inbox) if broker.topic in finding.what]

    reach, nobody = found()
    assert (reach.level, "is read again from where the database is" in reach.what) == ("ok", True)
    assert (nobody.level, nobody.what.endswith("has 1 partition, shared by 0 readers")) == ("ok", True)

    async def crowd() -> None:
        readers = [KafkaTopic(broker.url()) for _ in range(2)]
        for reader in readers:
            await reader.open()

        async def joined() -> bool:
            for reader in readers:
                await reader.next(1, 0.1)
            return readers[0].shares().readers == 2

        await wait_until_async(joined)
        _, crowded = found()
        assert crowded.level == "warning"
        assert (
            f"1 of them get {'and handle nothing' if mode == 'direct' else 'nothing, they only handle'}" in crowded.what
        )
        for reader in readers:
            await reader.close()

    asyncio.run(crowd())
    broker.delete_topic()
    (gone,) = found()
    assert (gone.level, f"there is no topic {broker.topic}" in gone.what) == ("error", True)
    broker.close()


@pytest.mark.needs("passwords")
@pytest.mark.parametrize("password", ["s3%3Acret", "wrong"])
def test_users_and_passwords(shop: Shop, kafka_broker: KafkaBroker, kafka_server: KafkaServer, password: str) -> None:
    """A wrong one is waited out like a broker that is away; both are in no name."""
    query = kafka_broker.url().partition("?")[2]
    url = f"kafka://shop:{password}@127.0.0.1:{kafka_server.sasl_port}?{query}"
    shop.inbox.add_source(url, source="broker")
    assert password not in shop.inbox.ingress.consumers[0].source.name
    publish(kafka_broker, "m-1")
    with reading(shop):
        if password == "wrong":
            return
        wait_until(lambda: shop.effects() == ["m-1"])


@pytest.mark.parametrize(
    "url",
    [
        "kafka://localhost",
        "kafka://localhost?topic=",
        "kafka://localhost?topic=x&session=0",
        "kafka://localhost?topic=x&order=key",
        "kafka://me:canary@localhost?topic=x&sasl=gssapi",
        "kafka://localhost?topic=x&topik=y",
    ],
)
def test_a_wrong_address_says_what_is_right(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"topic=NAME|session|order=key|sasl=gssapi") as said:
        open_source(url)
    assert "canary" not in str(said.value)
