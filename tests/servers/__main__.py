"""Fetches the servers before the tests start: `python -m tests.servers`."""

from __future__ import annotations

import sys

from tests.servers import install

try:
    found = (
        install.postgresql_bin(),
        install.pgbouncer_program(),
        install.redis_program(),
        install.nats_program(),
        install.rabbitmq_program(),
        install.mosquitto_program(),
        install.java_program(),
        install.kafka_libraries(),
        install.pubsub_emulator() or install.pstest_program(),
        install.chromium_program(),
        install.chromedriver_program(),
    )
    sys.stdout.write(f"servers: {', '.join(map(str, found))}\n")
except install.ServerMissing as missing:
    sys.exit(str(missing))
