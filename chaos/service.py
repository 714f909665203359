"""The service under test: each message adds one row to `effect`, which has no unique constraint, so a double shows."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Literal

from chaos.releases import OLD
from onceward import Inbox, Message, Reject, Retry, RetryPolicy, Settings
from onceward.sinks.inbox import InboxSink

Kind = Literal["sync", "async"]
LEASE = timedelta(seconds=2)

_TYPES = ("plain", "flaky", "doomed", "deadly", "sends", "echo")

_TABLE = {
    "sqlite": "CREATE TABLE effect (at integer PRIMARY KEY AUTOINCREMENT, id text, account text,"
    " position integer, pid integer, code text)",
    "postgres": "CREATE TABLE effect (at bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text, account text,"
    " position bigint, pid integer, code text)",
    "mysql": "CREATE TABLE effect (at bigint AUTO_INCREMENT PRIMARY KEY, id varchar(255), account varchar(255),"
    " position bigint, pid integer, code text)",
}


def create(url: str) -> None:
    """Make the tables."""
    with Inbox(url) as inbox:
        inbox.migrate()
        with inbox.transaction() as tx:
            tx.execute(_TABLE[inbox.store.dialect])


def build(url: str, kind: Kind) -> Inbox:
    """The inbox of one process."""
    settings = Settings(
        lease=LEASE,
        poll=timedelta(milliseconds=200),
        statement_limit=timedelta(seconds=5),
        handler_timeout=timedelta(seconds=10),
        store_first_for=timedelta(seconds=5),
        stop_timeout=timedelta(seconds=5),
    )
    inbox = Inbox(url, settings=settings)
    place = "?" if inbox.store.dialect == "sqlite" else "%s"
    insert = f"INSERT INTO effect (id, account, position, pid, code) VALUES ({', '.join([place] * 5)})"
    code = os.environ.get("ONCEWARD_CODE_VERSION", "")

    def values(message: Message) -> tuple[Any, ...]:
        return message.id, message.key, message.data["position"], os.getpid(), code

    def decide(message: Message) -> None:
        if message.type == "deadly":
            os._exit(9)
        if message.type == "doomed":
            raise Reject("doomed")
        if message.type == "flaky" and message.attempt == 1:
            raise Retry("once more", after=0.05)
        if message.type == "sends":
            message.send("echo", {"position": message.data["position"]}, key=message.data["key"])

    def handle(message: Message, tx: Any) -> None:
        tx.execute(insert, values(message))
        decide(message)

    async def handle_async(message: Message, tx: Any) -> None:
        await tx.execute(insert, values(message))
        decide(message)

    chosen = handle if kind == "sync" else handle_async
    retry = RetryPolicy(attempts=5, first=timedelta(milliseconds=100))
    for name in (*_TYPES, *(() if code == OLD else ("novel",))):
        inbox.on(name, retry=retry)(chosen)
    inbox.on("ordered", key="key", retry=retry)(chosen)
    inbox.add_sink("default", InboxSink(inbox, source="relay"))
    return inbox
