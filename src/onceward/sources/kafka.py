"""Kafka: a consumer group; the offset behind what is stored is committed after the database has committed.

The client's calls block, so they run one after another in a thread of the source's own, and the group's callbacks with
them: no partition comes or goes while a batch is stored.

Invariant: an offset is committed only for a partition that is ours since the message was read, and only when
everything before it in the partition was accepted.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from onceward.brokers.librdkafka import Hearing, client_configuration, log
from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.sinks.kafka import REFUSED
from onceward.sources.protocol import Arrival, BrokerUnavailable, Shares

try:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient
except ImportError as error:
    raise ConfigurationError("Kafka needs: pip install 'onceward[kafka]'") from error

T = TypeVar("T")

MORE_SECONDS = 0.05
"""How long a batch that has begun waits to become larger."""
ASK_SECONDS, TRY_SECONDS = 10.0, 1.0
"""How long a question beside the reading may take, and how long until we look why there is no answer yet."""
ORDERS = ("arrival", "offset")
FORM = "kafka://host:9092?topic=NAME&group=onceward&session=45&order=arrival&sasl=plain"
# The group is changing: what was to be committed is when it has settled, or by whoever has the partition then.
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

    redelivery = timedelta(days=30)
    """As long as the topic keeps a record, which only its owner knows; declare your own where it is longer."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._topics = address["topic"].split(",")
        if address["order"] not in ORDERS:
            raise ConfigurationError(f"order={address['order']} must be one of {', '.join(ORDERS)}")
        self._by_offset = address["order"] == "offset"
        self._address, self._group = address, address["group"]
        self._hearing = Hearing(*REFUSED)
        self._settings = {
            **client_configuration(address, self._hearing),
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
        self.name = f"{address.shown} topic {address['topic']}"

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, "onceward-kafka")
        await self._do(self._open)

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        return await self._do(lambda: self._next(limit, seconds))

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        await self._do(lambda: self._accept([arrival.handle for arrival in arrivals]))

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        await self._do(lambda: self._release([arrival.handle for arrival in arrivals]))

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
        hearing = Hearing(*REFUSED, *_AWAY)
        asking = AdminClient(client_configuration(self._address, hearing))
        try:
            known = _topics(asking, hearing)
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
        self._hearing.hopeless = ""
        self._consumer = Consumer(self._settings)
        self._ours, self._to_commit = {}, {}
        self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _assigned(self, _: Any, partitions: Sequence[Any]) -> None:
        for one in partitions:
            self._ours[one.topic, one.partition] = next(self._terms)

    def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        """They are ours until this returns: the last moment to say how far we are."""
        self._commit()
        self._lost(_, partitions)

    def _lost(self, _: Any, partitions: Sequence[Any]) -> None:
        """They are somebody else's already; what was not committed is read again, and known."""
        for one in partitions:
            self._ours.pop((one.topic, one.partition), None)
            self._to_commit.pop((one.topic, one.partition), None)

    def _next(self, limit: int, seconds: float) -> list[Arrival]:
        self._commit()
        first = self._consumer.poll(seconds)
        # Who has partitions is connected all the same; one broker of several may speak so while it restarts.
        if first is None and self._hearing.hopeless and not self._ours:
            raise BrokerUnavailable(self._hearing.hopeless)
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

    def _accept(self, places: Sequence[Place]) -> None:
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

    def _release(self, places: Sequence[Place]) -> None:
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
        headers = {name.lower(): _text(value) for name, value in record.headers() or ()}
        own = {"kafka-topic": topic}
        if key is not None:
            own["kafka-key"] = _text(key)
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
            id=headers.get("id"),
            type=headers.get("type"),
        )


def _topics(asking: Any, hearing: Hearing) -> dict[str, Any]:
    """What topics there are."""
    deadline = time.monotonic() + ASK_SECONDS
    while True:
        try:
            found: dict[str, Any] = asking.list_topics(timeout=TRY_SECONDS).topics
        except KafkaException as trouble:
            asking.poll(0)
            if hearing.hopeless or time.monotonic() > deadline:
                raise BrokerUnavailable(hearing.first or str(trouble)) from trouble
        else:
            return found


def _text(value: bytes | str | None) -> str:
    return value if isinstance(value, str) else (value or b"").decode(errors="backslashreplace")
