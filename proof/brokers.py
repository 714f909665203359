"""`python -m proof.brokers`: write the table in docs/brokers.md from the last recorded run of the brokers' contracts."""

from __future__ import annotations

import importlib
import json
from typing import Any

from proof.__main__ import FIGURES, PAGE

RECORD = FIGURES / "brokers.json"
BROKERS_PAGE = PAGE.with_name("brokers.md")
BEGIN, END = "<!-- made by `make brokers` -->\n", "<!-- end -->\n"
BROKERS = (
    ("Redis Streams", "redis", "RedisBroker"),
    ("NATS JetStream", "nats", "NatsBroker"),
    ("RabbitMQ", "rabbitmq", "RabbitBroker"),
    ("MQTT 5 (QoS 1)", "mqtt", "MqttBroker"),
    ("Kafka", "kafka", "KafkaBroker"),
    ("Amazon SQS", "sqs", "SqsBroker"),
    ("Google Pub/Sub", "pubsub", "PubsubBroker"),
    ("Apache Pulsar", "pulsar", "PulsarBroker"),
)
"""The name, its module (and the extra to install), and what the record calls it."""


def record() -> dict[str, Any]:
    """What the last recorded run says, by broker."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["brokers"]
    return found


def table() -> str:
    """The table as it should be."""
    lines = ["| broker | address | install | proven on | cases in | out |", "|---|---|---|---|---|---|"]
    found = record()
    for name, module, key in BROKERS:
        form = importlib.import_module(f"onceward.brokers.{module}").BROKER.source.form
        entry = found[key]
        counts = " | ".join(f"{sum(entry[way].values())} of {len(entry[way])}" for way in ("in", "out"))
        lines.append(f"| {name} | `{form}` | `pip install 'onceward[{module}]'` | {entry['server']} | {counts} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    BROKERS_PAGE.write_text(with_table(BROKERS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
