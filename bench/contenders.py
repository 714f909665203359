"""The contenders: each does the same work (remember the id, update one row, atomically) and is checked afterwards.

Ratios inside one run are the result; the absolute numbers are the machine's.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from onceward import Inbox, Message

ROWS = 1_000
PAD = "x" * 230


def messages(count: int, kind: str) -> list[dict[str, Any]]:
    """About 300 bytes each; every tenth is delivered twice."""
    fresh = [
        {"source": "bench", "id": uuid.uuid4().hex, "type": kind, "data": {"row": number % ROWS, "pad": PAD}}
        for number in range(count)
    ]
    return fresh + fresh[::10]


def timed(work: Callable[[], Any], count: int) -> float:
    """Messages per second."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


class Onceward:
    """An inbox with a handler that updates one row, and one that does nothing."""

    def __init__(self, url: str) -> None:
        self.inbox = Inbox(url)
        self.inbox.migrate()
        mark = "?" if url.startswith("sqlite") else "%s"
        update = f"UPDATE target SET n = n + 1 WHERE id = {mark}"
        with self.inbox.transaction() as tx:
            tx.execute("CREATE TABLE target (id integer PRIMARY KEY, n integer NOT NULL)")
            tx.execute("INSERT INTO target " + _series(url))

        @self.inbox.on("update")
        def apply(message: Message, tx: Any) -> None:
            tx.execute(update, [message.data["row"]])

        @self.inbox.on("nothing")
        def read(message: Message, _tx: Any) -> None:
            assert message.data["pad"]

    def receive(self, batch: list[dict[str, Any]]) -> None:
        """Store-first, many at a time."""
        self.inbox.receive_many(batch)  # type: ignore[arg-type] # the shape of receive's arguments

    def receive_singly(self, batch: list[dict[str, Any]]) -> None:
        """Store-first, one call per message."""
        for message in batch:
            self.inbox.receive(**message)

    def process(self, batch: list[dict[str, Any]]) -> None:
        """Inline."""
        for message in batch:
            self.inbox.process(**message)

    def effects(self) -> int:
        """How many updates have been applied."""
        with self.inbox.transaction() as tx:
            return int(tx.execute("SELECT sum(n) FROM target").fetchone()[0])


def _series(url: str) -> str:
    if url.startswith("sqlite"):
        return (
            "WITH RECURSIVE i (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM i WHERE id < "
            f"{ROWS - 1}) SELECT id, 0 FROM i"
        )
    return f"SELECT id, 0 FROM generate_series(0, {ROWS - 1}) AS id"


def textbook_postgres(url: str, batch: list[dict[str, Any]]) -> None:
    """The inbox of the articles: one transaction per message, insert the id, apply, commit."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS textbook "
            "(id text PRIMARY KEY, payload jsonb, processed_at timestamptz DEFAULT now())"
        )
        connection.commit()
        for message in batch:
            with connection.transaction():
                fresh = connection.execute(
                    "INSERT INTO textbook (id, payload) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING id",
                    [message["id"], json.dumps(message["data"])],
                ).fetchone()
                if fresh:
                    connection.execute("UPDATE target SET n = n + 1 WHERE id = %s", [message["data"]["row"]])


def textbook_sqlite(path: Path, batch: list[dict[str, Any]]) -> None:
    """The same on SQLite, with the driver's default settings, as the articles print it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS textbook (id text PRIMARY KEY, payload text)")
        connection.execute("CREATE TABLE IF NOT EXISTS target (id integer PRIMARY KEY, n integer)")
        connection.executemany("INSERT OR IGNORE INTO target VALUES (?, 0)", [(row,) for row in range(ROWS)])
        connection.commit()
        for message in batch:
            try:
                connection.execute("INSERT INTO textbook VALUES (?, ?)", [message["id"], json.dumps(message["data"])])
            except sqlite3.IntegrityError:
                connection.rollback()
                continue
            connection.execute("UPDATE target SET n = n + 1 WHERE id = ?", [message["data"]["row"]])
            connection.commit()
