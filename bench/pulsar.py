"""`python -m bench.pulsar`: from a topic of Pulsar to the effect, beside the textbook; writes docs/brokers/pulsar.md.

The textbook: receive one, insert its id, insert the effect, commit, acknowledge. Both read the same messages, published
before, into the same PostgreSQL with durable settings.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
import pulsar

from onceward import Inbox, Message
from proof import report
from proof.__main__ import FIGURES
from tests.servers import PostgresServer, PulsarServer
from tests.waiting import wait_until

PAGE = Path(__file__).parents[1] / "docs" / "brokers" / "pulsar.md"
RECORD = FIGURES / "pulsar-speed.json"
BEGIN, END = "<!-- made by `python -m bench.pulsar` -->\n", "<!-- end -->\n"
MESSAGES, TURNS, LEAST = 4_000, 3, 3.0
BODY = json.dumps({"text": "x" * 160}).encode()
EFFECT = "INSERT INTO effect (number) VALUES (%s)"


def published(client: Any, topic: str) -> None:
    """All messages, confirmed."""
    producer = client.create_producer(topic, block_if_queue_full=True)
    for number in range(MESSAGES):
        producer.send_async(BODY, None, {"id": f"m{number}", "type": "order.paid"}, partition_key=str(number % 100))
    producer.flush()
    producer.close()


def textbook(client: Any, topic: str, url: str) -> float:
    """Messages a second, one by one."""
    consumer = client.subscribe(topic, "textbook", initial_position=pulsar.InitialPosition.Earliest)
    with psycopg.connect(url) as connection:
        began = time.monotonic()
        for _ in range(MESSAGES):
            message = consumer.receive(10_000)
            name = message.properties()["id"]
            known = connection.execute("INSERT INTO seen VALUES (%s) ON CONFLICT DO NOTHING", [name])
            if known.rowcount:
                connection.execute(EFFECT, [len(json.loads(message.data())["text"])])
            connection.commit()
            consumer.acknowledge(message)
        took = time.monotonic() - began
    consumer.close()
    return MESSAGES / took


def onceward(address: str, topic: str, url: str) -> float:
    """The same by an inbox with its source."""
    with closing(Inbox(url)) as inbox, psycopg.connect(url, autocommit=True) as connection:
        inbox.migrate()

        @inbox.on("order.paid")
        def pay(message: Message, tx: Any) -> None:
            tx.execute(EFFECT, [len(message.data["text"])])

        def done() -> bool:
            row = connection.execute("SELECT count(*) FROM effect").fetchone()
            return bool(row and row[0] == MESSAGES)

        inbox.add_source(f"{address}?topic={topic}&prefetch=1000", source="bench", batch=500)
        worker = threading.Thread(target=inbox.run)
        began = time.monotonic()
        worker.start()
        wait_until(done, timeout=120, message="every effect")
        took = time.monotonic() - began
        while worker.is_alive():
            inbox.stop()
            worker.join(0.05)
        return MESSAGES / took


def measured() -> dict[str, Any]:
    """Both in turns; the medians."""
    found: dict[str, list[float]] = {"textbook": [], "onceward": []}
    with PulsarServer() as server, PostgresServer(durable=True) as store:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        client = pulsar.Client(server.address, logger=quiet)
        for turn in range(TURNS):
            topic, name = f"bench-{turn}", f"bench_{turn}"
            published(client, topic)
            for kind, rates in found.items():
                store.create_database(f"{name}_{kind}")
                url = store.url(f"{name}_{kind}")
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("CREATE TABLE effect (number int)")
                    connection.execute("CREATE TABLE seen (id text PRIMARY KEY)")
                taken = textbook(client, topic, url) if kind == "textbook" else onceward(server.address, topic, url)
                rates.append(taken)
        client.close()
        return {"pulsar": server.version, "messages": MESSAGES} | {
            kind: round(median(times)) for kind, times in found.items()
        }


def line(found: dict[str, Any]) -> str:
    """The figures as the page has them."""
    ratio = found["onceward"] / found["textbook"]
    return (
        f"From the topic to the committed effect: {found['onceward']:,} messages a second in one process, "
        f"{ratio:.1f} times the textbook (receive one, insert its id and the effect, commit, acknowledge: "
        f"{found['textbook']:,}). Pulsar {found['pulsar']}, PostgreSQL with durable settings, "
        f"{found['messages']:,} messages, {found['date']}.\n"
    )


def with_line(page: str) -> str:
    """The page with the figures as they should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{line(json.loads(RECORD.read_text(encoding='utf-8')))}{END}{after}"


if __name__ == "__main__":
    report.write(str(RECORD), {"run": "pulsar", **measured()})
    PAGE.write_text(with_line(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
