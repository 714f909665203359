"""The part of docs/benchmarks.md on Redis, DynamoDB and Pulsar, from the records of their own benchmarks."""

from __future__ import annotations

import json

from bench import dynamodb, pulsar, redis

_MADE = """\
Each beside the same by hand, on a server of its own, in turns; `make bench` measures them too. What by hand means is on
their pages: [Redis](redis-store.md#speed), [DynamoDB](dynamodb.md#what-a-message-costs), [Pulsar](brokers/pulsar.md).
DynamoDB Local is not timed, for its time is not Amazon's; it counts what Amazon bills.
"""


def section() -> str:
    """It, as it should be."""
    on_redis, on_dynamodb, from_pulsar = (
        json.loads(record.read_text(encoding="utf-8")) for record in (redis.RECORD, dynamodb.RECORD, pulsar.RECORD)
    )
    return "\n".join(
        [
            "## Redis, DynamoDB and Pulsar\n",
            _MADE,
            redis.table(on_redis),
            dynamodb.table(on_dynamodb),
            pulsar.line(from_pulsar),
        ]
    )
