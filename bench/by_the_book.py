"""`python -m bench.by_the_book BROKER DATABASE ADDRESS`: a consumer as the textbooks write it, a process of a race.

Take a message, insert its id, apply, commit, acknowledge. It gets what makes that quick without making it unsafe: a
prefetch, acknowledgements that nothing waits for, and reads of many where the broker has them.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg

from bench.contenders import textbook_message
from bench.race import ready, tell, wait_for_end

READ = 100
PREFETCH = 100


def kafka(settle: Callable[[str, str, bytes], None], address: str, stop: threading.Event) -> None:
    """One record at a time, from what librdkafka has fetched; offsets are committed in the background."""
    from confluent_kafka import Consumer  # noqa: PLC0415 - each process has one of the clients

    url, asked = urlsplit(address), parse_qs(urlsplit(address).query)
    consumer = Consumer(
        {
            "bootstrap.servers": url.netloc,
            "group.id": asked["group"][0],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(asked["topic"])
    while not stop.is_set():
        record = consumer.poll(0.1)
        if record is None or record.error():
            continue
        headers: Any = dict(record.headers() or ())
        settle(headers["id"].decode(), headers["type"].decode(), record.value() or b"")
        consumer.commit(message=record, asynchronous=True)
    consumer.close()


def rabbitmq(settle: Callable[[str, str, bytes], None], address: str, stop: threading.Event) -> None:
    """A channel with a prefetch."""
    import pika  # noqa: PLC0415 - as above

    url, asked = urlsplit(address), parse_qs(urlsplit(address).query)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", url.port, heartbeat=0))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    for method, properties, body in channel.consume(asked["queue"][0], inactivity_timeout=0.1):
        if method is not None:
            settle(properties.message_id, properties.type, body)
            channel.basic_ack(method.delivery_tag)
        if stop.is_set():
            break
    channel.cancel()
    connection.close()


def redis_streams(settle: Callable[[str, str, bytes], None], address: str, stop: threading.Event) -> None:
    """Many entries with one read."""
    import redis  # noqa: PLC0415 - as above

    url, asked = urlsplit(address), parse_qs(urlsplit(address).query)
    stream, group, consumer = asked["stream"][0], asked["group"][0], f"c{threading.get_native_id()}"
    client: Any = redis.Redis.from_url(f"{url.scheme}://{url.netloc}{url.path}")
    with suppress(redis.ResponseError):  # another process has made it
        client.xgroup_create(stream, group, "0", mkstream=True)
    while not stop.is_set():
        for _, entries in client.xreadgroup(group, consumer, {stream: ">"}, count=READ, block=100):
            for entry, fields in entries:
                settle(fields[b"id"].decode(), fields[b"type"].decode(), fields[b"body"])
                client.xack(stream, group, entry)


def consume(broker: str, database: str, address: str) -> None:
    """Take part until all is done."""
    connection = psycopg.connect(database)
    stop = threading.Event()
    failures: list[BaseException] = []

    def settle(name: str, kind: str, body: bytes) -> None:
        textbook_message({"id": name, "type": kind, "data": json.loads(body)}, connection)

    def work() -> None:
        try:
            BROKERS[broker](settle, address, stop)
        except BaseException as error:
            failures.append(error)
            raise

    worker = threading.Thread(target=work)
    ready()
    worker.start()
    wait_for_end()
    stop.set()
    worker.join()
    tell([repr(failure) for failure in failures])


BROKERS: dict[str, Callable[[Callable[[str, str, bytes], None], str, threading.Event], None]] = {
    "kafka": kafka,
    "rabbitmq": rabbitmq,
    "redis": redis_streams,
}

if __name__ == "__main__":
    consume(*sys.argv[1:])
