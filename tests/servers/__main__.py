"""Fetches the servers before the tests start: `python -m tests.servers`.

Kafka alone is not in Debian and has a stand-in: where it cannot be fetched, the run goes on without it and says so.
"""

from __future__ import annotations

import sys

from tests.servers import install


def kafka() -> str:
    """Where Kafka is, or why it is not."""
    try:
        return f"{install.java_program()}, {install.kafka_libraries()}"
    except install.ServerMissing as missing:
        if not install.kafka_missing():
            raise
        sys.stderr.write(f"{missing}\n")
        return f"librdkafka's mock cluster ({install.kafka_missing()})"


try:
    found = (
        (kafka(),)
        if sys.argv[1:] == ["kafka"]
        else (
            install.postgresql_bin(),
            install.pgbouncer_program(),
            install.redis_program(),
            install.nats_program(),
            install.rabbitmq_program(),
            install.mosquitto_program(),
            kafka(),
            install.pubsub_emulator() or install.pstest_program(),
            install.chromium_program(),
            install.chromedriver_program(),
        )
    )
    sys.stdout.write(f"servers: {', '.join(map(str, found))}\n")
except install.ServerMissing as missing:
    sys.exit(str(missing))
