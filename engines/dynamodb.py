"""DynamoDB Local as a store: a load in which the server is killed.

Invariant: what is lost is ours. DynamoDB Local forgets its last acknowledged write when it is killed, so the kill comes
when no message is being received, after writes that nobody misses; of what workers do, the last may well be forgotten.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing, suppress
from typing import Any

from engines.load import FEEDERS, Load, Report
from onceward import Inbox, Message
from tests.servers import DynamoServer

FEWER = 1_000
TABLE, EFFECTS = "load", "load-effects"
_MISSED_BY_NONE = 10


class DynamoLoad(Load):
    """The load on a DynamoDB: an item for each key lists its effects."""

    def __init__(self, endpoint: str, messages: int) -> None:
        super().__init__(f"dynamodb://eu-central-1/{TABLE}?endpoint={endpoint}", messages)
        self._room = threading.Semaphore(FEEDERS)

    def kill(self, server: DynamoServer) -> None:
        """Kill the server and start it again, while nothing is being received."""
        for _ in range(FEEDERS):
            self._room.acquire()
        with self._client() as client:
            for number in range(_MISSED_BY_NONE):
                client.put_item(TableName=EFFECTS, Item={"name": {"S": "-"}, "number": {"N": str(number)}})
        server.restart()
        self._room.release(FEEDERS)

    def _send(self, inbox: Inbox, number: int) -> bool:
        with self._room:
            return super()._send(inbox, number)

    def _prepare(self, inbox: Inbox) -> None:
        store: Any = inbox.store
        store.client().create_table(
            TableName=EFFECTS,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        )

    @staticmethod
    def effect(message: Message, tx: Any) -> None:
        """What the handler does."""
        append = "SET numbers = list_append(if_not_exists(numbers, :none), :one)"
        one = {":none": [], ":one": [message.data["number"]]}
        tx.update(EFFECTS, {"name": message.data["key"]}, append, values=one)

    def _effects(self) -> list[tuple[str, int]]:
        with suppress(Exception), self._client() as client:  # the server is away; it is asked again
            items = client.scan(TableName=EFFECTS, ConsistentRead=True)["Items"]
            return [(item["name"]["S"], int(one["N"])) for item in items for one in item.get("numbers", {"L": []})["L"]]
        return []

    def _client(self) -> Any:
        import boto3  # noqa: PLC0415 - it takes long

        endpoint = self._url.partition("endpoint=")[2]
        return closing(boto3.client("dynamodb", region_name="eu-central-1", endpoint_url=endpoint))


def dynamodb() -> Report:
    """The load, of fewer messages: each takes longer."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "load", "AWS_SECRET_ACCESS_KEY": "load"}  # any will do
    with DynamoServer() as server:
        load = DynamoLoad(server.address, FEWER)
        verdict = load.play(lambda: load.kill(server))
        return Report(server.name, server.version, "kill -9 of the server between two receives, restart", verdict)
