"""Redis and Valkey as stores: a load in which the server is killed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from redis import Redis, RedisError

from engines.load import MESSAGES, Load, Report
from onceward import Inbox, Message
from tests.servers import RedisServer


class RedisLoad(Load):
    """The load on a Redis."""

    def _prepare(self, inbox: Inbox) -> None:
        """A list makes itself."""

    @staticmethod
    def effect(message: Message, tx: Any) -> None:
        """What the handler does."""
        tx.rpush("effects", json.dumps([message.data["key"], message.data["number"]]))

    def _effects(self) -> list[tuple[str, int]]:
        with suppress(RedisError), Redis.from_url(self._url) as client:
            found: list[Any] = client.lrange("effects", 0, -1)
            return [tuple(json.loads(one)) for one in found]
        return []


def redis(server_type: type[RedisServer]) -> Report:
    """The load on one of them."""
    with server_type() as server:
        verdict = RedisLoad(server.address, MESSAGES).play(server.restart)
        return Report(server.name, server.version, "kill -9 of the server, restart", verdict)
