"""Fixtures: a Redis of one's own, to be killed and cut, and an inbox on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from onceward import Inbox, Message, Settings
from onceward.retry import RetryPolicy
from tests.servers import FaultProxy, RedisServer
from tests.servers.redis import store_server

QUICK = Settings(poll=timedelta(milliseconds=50), lease=timedelta(seconds=5))


@pytest.fixture(scope="session")
def durable_redis() -> Iterator[RedisServer]:
    """A Redis that these tests may kill: it comes back with what it has acknowledged."""
    with store_server() as server:
        yield server


@pytest.fixture
def address(durable_redis: RedisServer) -> str:
    """Its address, emptied."""
    if not durable_redis.running:
        durable_redis.start()
    with redis.Redis.from_url(durable_redis.address) as client:
        client.flushall()
    return durable_redis.address


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    """A look at what is really there."""
    with redis.Redis.from_url(address, decode_responses=True) as client:
        yield client


@pytest.fixture
def proxy(durable_redis: RedisServer) -> Iterator[FaultProxy]:
    """What stands before it, to be cut."""
    with FaultProxy("127.0.0.1", durable_redis.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(address: str, proxy: FaultProxy) -> str:
    """The address behind the proxy."""
    return address.replace(address.rpartition(":")[2].partition("/")[0], str(proxy.port))


@pytest.fixture
def inbox(address: str) -> Iterator[Inbox]:
    """An inbox with its tables and no handler."""
    with Inbox(address, settings=QUICK) as inbox:
        inbox.migrate()
        yield inbox


def effect(message: Message, tx: Any) -> None:
    """What handlers do here: one entry for each run that counts."""
    tx.rpush("effects", message.id)


def effects(client: Any) -> list[str]:
    """The entries, in the order of their writing."""
    found: list[str] = client.lrange("effects", 0, -1)
    return found


NEVER_LONG = RetryPolicy(attempts=3, first=timedelta(milliseconds=1), jitter=0)
