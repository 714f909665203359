"""A message that was stored is one that any worker may claim with others, and that nothing has tried yet."""

from __future__ import annotations

import sqlite3

from onceward import Inbox, Message


def test_a_received_message_is_ready_and_untried(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()

        @inbox.on("paid")
        def handler(message: Message, tx: sqlite3.Connection) -> None:
            """Never called."""

        inbox.receive(source="shop", id="e1", type="paid", data={})
        inbox.receive_many([{"source": "shop", "id": "e2", "type": "paid", "data": {}}])
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        rows = connection.execute(
            "SELECT state, attempts, worker, token, isolation, outgoing FROM onceward_queue ORDER BY seq"
        ).fetchall()
    connection.close()
    assert rows == [("ready", 0, None, None, 0, 0)] * 2
