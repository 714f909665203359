"""The program that polls and is killed: `tests.sources.poll_program:inbox`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from onceward import Inbox, Message, Response, Settings
from tests.sources.api import ask

inbox = Inbox(os.environ["SOURCE_STORE"], settings=Settings(lease=timedelta(seconds=1), poll=timedelta(seconds=0.05)))


@inbox.add_poll(every=timedelta(seconds=0.05), source="api", timeout=timedelta(seconds=1))
def pages(cursor: int | None) -> Iterator[Response]:
    """Every page there is."""
    while True:
        body = ask(os.environ["SOURCE_URL"], cursor or 0)
        after = json.loads(body)["next"]
        yield Response(body, cursor=after)
        if after == cursor:
            return
        cursor = after


@inbox.on("api.response")
def split(message: Message, tx: Any) -> None:
    """Its orders become messages; one that came with the page before is known."""
    for order in message.data["orders"]:
        inbox.receive(source="orders", id=order["id"], type="order", data=order, tx=tx)


@inbox.on("order")
def handle(message: Message, tx: Any) -> None:
    """One row per effect."""
    mark = "?" if inbox.url.startswith("sqlite") else "%s"
    tx.execute(f"INSERT INTO effects (message_id, note) VALUES ({mark}, '')", [message.id])
