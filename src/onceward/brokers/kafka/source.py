"""Kafka: a consumer group; the offset behind what is stored is committed after the database has committed.

The client's calls block, so they run one after another in a thread of the source's own, and the group's callbacks with
them: no partition comes or goes while a batch is stored.

Invariant: an offset is committed only for a partition that is ours since the message was read, and only when
everything before it in the partition was acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined] # it is documented there

from onceward.brokers.kafka.librdkafka import REFUSED, ErrorCallback, client_configuration, log
from onceward.brokers.protocol import Arrival, BrokerUnavailable, Shares
from onceward.domain.address import Address
from onceward.domain.headers import text_of
from onceward.errors import ConfigurationError

T = TypeVar("T")

MORE_SECONDS = 0.05
"""How long a batch that has begun waits to become larger."""
ASK_SECONDS, TRY_SECONDS = 10.0, 1.0
"""How long a question beside the reading may take, and how long until we look why there is no answer yet."""
ORDERS = ("arrival", "offset")
# The group is changing: what was to be committed is when it has settled, or by the reader that has the partition then.
_NOT_NOW = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.STALE_MEMBER_EPOCH,
)
_AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)  # noqa: SLF001 - so the client spells its own errors


class Place(NamedTuple):
    """Where a message was read, and in which of our times with its partition."""

    topic: str
    partition: int
    offset: int
    term: int


class KafkaTopic:
    """`kafka://host:9092,host2:9092?topic=orders&group=shop&session=45&order=arrival`.

    Several topics are separated by commas. The id is the header `id`, the type the header `type`;
    `type="header:kafka-topic"` takes the topic, and a handler's `key="header:kafka-key"` the record's key.
    """

    form = "kafka://host:9092?topic=NAME&group=onceward&session=45&order=arrival&sasl=plain"
    redelivery = timedelta(days=30)
    """As long as the topic keeps a record, which only its owner knows; declare your own where it is longer."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._topics = address["topic"].split(",")
        if address["order"] not in ORDERS:
            raise ConfigurationError(f"order={address['order']} must be one of {', '.join(ORDERS)}")
        self._by_offset = address["order"] == "offset"
        self._address, self._group = address, address["group"]
        self._errors = ErrorCallback(*REFUSED)
        self._settings = {
            **client_configuration(address, self._errors),
            "group.id": self._group,
            "session.timeout.ms": int(address.seconds("session") * 1000),
            "heartbeat.interval.ms": int(address.seconds("session") * 1000 / 4),
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",  # what was there before us must not be missed
            "enable.auto.commit": False,  # what was read is not yet stored
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 16_384,
        }
        self._thread: ThreadPoolExecutor | None = None
        self._consumer: Any = None
        self._terms = itertools.count()
        self._ours: dict[tuple[str, int], int] = {}
        self._to_commit: dict[tuple[str, int], int] = {}
        self._positions: Callable[[], Mapping[str, str]] | None = None
        self.name = f"{address.shown} topic {address['topic']}"

    def follow(self, positions: Callable[[], Mapping[str, str]]) -> None:
        self._positions = positions

    async def rewind(self, positions: Mapping[str, str | None]) -> None:
        await self._do(lambda: self._rewind(positions))

    def reaches_back(self) -> timedelta | None:
        errors = ErrorCallback(*REFUSED, *_AWAY)
        asking = AdminClient(client_configuration(self._address, errors))
        topics = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in self._topics]
        try:
            found = asking.describe_configs(topics, request_timeout=ASK_SECONDS)
            kept = [int(found[topic].result()["retention.ms"].value) for topic in topics]
        except KafkaException as trouble:
            raise BrokerUnavailable(errors.first or str(trouble.args[0])) from trouble
        limited = [milliseconds for milliseconds in kept if milliseconds >= 0]
        return timedelta(milliseconds=min(limited)) if limited else None

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, "onceward-kafka")
        await self._do(self._open)

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        return await self._do(lambda: self._next(limit, seconds))

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        await self._do(lambda: self._ack([arrival.handle for arrival in arrivals]))

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        await self._do(lambda: self._nack([arrival.handle for arrival in arrivals]))

    async def close(self) -> None:
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
        finally:
            thread.shutdown(wait=False)

    def shares(self) -> Shares:
        # Not as a member of the group, whose partitions would move.
        errors = ErrorCallback(*REFUSED, *_AWAY)
        asking = AdminClient(client_configuration(self._address, errors))
        try:
            known = _topics(asking, errors)
            group = asking.describe_consumer_groups([self._group], request_timeout=ASK_SECONDS)[self._group].result()
        except KafkaException as trouble:
            raise BrokerUnavailable(str(trouble.args[0])) from trouble
        if missing := [topic for topic in self._topics if topic not in known]:
            raise BrokerUnavailable(f"there is no topic {', '.join(missing)}")
        return Shares(sum(len(known[topic].partitions) for topic in self._topics), len(group.members))

    async def _do(self, call: Callable[[], T]) -> T:
        """In the source's thread; seen through when we are cancelled, for the client is in use until it answers."""
        if self._thread is None:
            raise BrokerUnavailable("not connected")
        doing = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            raise
        except KafkaException as trouble:
            raise BrokerUnavailable(str(trouble.args[0])) from trouble

    # In the thread

    def _open(self) -> None:
        self._errors.permanent = ""
        self._consumer = Consumer(self._settings)
        self._ours, self._to_commit = {}, {}
        self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        for one in partitions:
            self._ours[one.topic, one.partition] = next(self._terms)
        behind = self._behind(consumer, partitions)
        if behind:
            consumer.incremental_assign([behind.get((one.topic, one.partition), one) for one in partitions])

    def _behind(self, consumer: Any, partitions: Sequence[Any]) -> dict[tuple[str, int], Any]:
        """The partitions with which the database is behind the group, as after a restore: they are read from there."""
        known = self._positions() if self._positions is not None else {}
        ours = [one for one in partitions if self._part(one.topic, one.partition) in known]
        behind = {}
        for one in consumer.committed(ours, timeout=ASK_SECONDS) if ours else ():
            position = int(known[self._part(one.topic, one.partition)])
            if position < one.offset:
                behind[one.topic, one.partition] = TopicPartition(one.topic, one.partition, position)
                what = "%s partition %d is read again from %d, where the database is; the group was at %d"
                log.warning(what, one.topic, one.partition, position, one.offset)
        return behind

    def _part(self, topic: str, partition: int) -> str:
        return f"{self._group}:{topic}/{partition}"

    def _rewind(self, positions: Mapping[str, str | None]) -> None:
        for topic, partition in list(self._ours):
            part = self._part(topic, partition)
            if part not in positions:
                continue
            there = positions[part]
            (here,) = self._consumer.position([TopicPartition(topic, partition)])
            if here.offset < 0 or (there is not None and int(there) >= here.offset):
                continue  # nothing was read yet, or another reader was further
            self._to_commit.pop((topic, partition), None)
            to = OFFSET_BEGINNING if there is None else int(there)
            log.warning("%s partition %d is read again from %s, where the database is", topic, partition, there)
            self._consumer.seek(TopicPartition(topic, partition, to))

    def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        """They are ours until this returns: the last moment to say how far we are."""
        self._commit()
        self._lost(_, partitions)

    def _lost(self, _: Any, partitions: Sequence[Any]) -> None:
        """They are another reader's already; what was not committed is read again, and known."""
        for one in partitions:
            self._ours.pop((one.topic, one.partition), None)
            self._to_commit.pop((one.topic, one.partition), None)

    def _next(self, limit: int, seconds: float) -> list[Arrival]:
        self._commit()
        first = self._consumer.poll(seconds)
        # A reader with partitions is connected all the same; one broker of several may say so while it restarts.
        if first is None and self._errors.permanent and not self._ours:
            raise BrokerUnavailable(self._errors.permanent)
        records = [] if first is None else [first]
        if records and limit > 1:
            records += self._consumer.consume(limit - 1, MORE_SECONDS)
        for record in records:
            if record.error() is not None and record.error().code() != KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
                # Opening again reads anew what came with it.
                raise BrokerUnavailable(str(record.error()))
        return [self._arrival(record) for record in records if record.error() is None and self._is_ours(record)]

    def _is_ours(self, record: Any) -> bool:
        """Not one that a partition has left behind which went away while the batch was read."""
        return (record.topic(), record.partition()) in self._ours

    def _ack(self, places: Sequence[Place]) -> None:
        for place in places:
            if self._ours.get(place[:2]) == place.term:
                self._to_commit[place[:2]] = place.offset + 1
        self._commit()

    def _commit(self) -> None:
        if not self._to_commit:
            return
        offsets = [TopicPartition(*where, offset) for where, offset in self._to_commit.items()]
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as trouble:
            if trouble.args[0].code() not in _NOT_NOW:
                raise
            log.info("offsets are committed later: %s", trouble)
            return
        for answer in answers:
            if answer.error is None:
                self._to_commit.pop((answer.topic, answer.partition), None)

    def _nack(self, places: Sequence[Place]) -> None:
        """Read them again, from the first of each partition on."""
        for place in reversed(places):
            if self._ours.get(place[:2]) == place.term:
                self._consumer.seek(TopicPartition(place.topic, place.partition, place.offset))

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._to_commit = {}  # a commit that failed may wait for a broker that is away
            consumer.close()

    def _arrival(self, record: Any) -> Arrival:
        topic, partition, offset = record.topic(), record.partition(), record.offset()
        body, key = record.value(), record.key()
        headers = {name.lower(): text_of(value) for name, value in record.headers() or ()}
        own = {"kafka-topic": topic}
        if key is not None:
            own["kafka-key"] = text_of(key)
        if body is None:
            own["kafka-tombstone"] = "true"
        # A topic that was deleted and made again has other records under the same offsets.
        kind, when = record.timestamp()
        made = "" if kind == TIMESTAMP_NOT_AVAILABLE else f"@{when}"
        return Arrival(
            body=b"" if body is None else bytes(body),
            headers={**headers, **own},
            handle=Place(topic, partition, offset, self._ours[topic, partition]),
            position=f"kafka:{topic}/{partition}/{offset}{made}",
            place=offset if self._by_offset else None,
            part=self._part(topic, partition),
            behind=str(offset + 1),
            id=headers.get("id"),
            type=headers.get("type"),
        )


def _topics(asking: Any, errors: ErrorCallback) -> dict[str, Any]:
    """The topics there are."""
    deadline = time.monotonic() + ASK_SECONDS
    while True:
        try:
            found: dict[str, Any] = asking.list_topics(timeout=TRY_SECONDS).topics
        except KafkaException as trouble:
            asking.poll(0)
            if errors.permanent or time.monotonic() > deadline:
                raise BrokerUnavailable(errors.first or str(trouble)) from trouble
        else:
            return found
