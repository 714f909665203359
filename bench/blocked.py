"""A million messages wait behind one dead head: what that does to the claims of other keys (R17, R33)."""

from __future__ import annotations

import time
import uuid
from typing import Any

from onceward import Inbox, Message

KEYED = 2_000

_NUMBERS = {
    "postgres": "SELECT generate_series({first}, {last})",
    "sqlite": "WITH RECURSIVE n (g) AS (SELECT {first} UNION ALL SELECT g + 1 FROM n WHERE g < {last}) SELECT g FROM n",
}
_HASH = {"postgres": "decode(repeat('ab', 32), 'hex')", "sqlite": "zeroblob(32)"}
_ID = {"postgres": "convert_to('rblocked' || g, 'UTF8')", "sqlite": "CAST('rblocked' || g AS blob)"}
_NOW = {"postgres": "now()", "sqlite": "0"}


def measure(url: str, waiting: int) -> tuple[float, float]:
    """Seconds to drain messages of many keys: before, and with so many that wait behind another key."""
    inbox = Inbox(url)
    inbox.migrate()

    @inbox.on("keyed", key="key")
    def handle(message: Message, _tx: Any) -> None:
        assert message.data["key"]

    try:
        _drain(inbox)
        empty = _drain(inbox)
        _block(inbox, waiting)
        _drain(inbox)
        return empty, _drain(inbox)
    finally:
        inbox.close()


def _drain(inbox: Inbox) -> float:
    keys = [uuid.uuid4().hex for _ in range(KEYED)]
    inbox.receive_many({"source": "bench", "id": key, "type": "keyed", "data": {"key": key}} for key in keys)
    started = time.perf_counter()
    finished = inbox.drain()
    assert finished == KEYED, finished
    return time.perf_counter() - started


def _block(inbox: Inbox, waiting: int) -> None:
    """The rows as receiving and parking them one by one would have left them: a dead head, and all others waiting."""
    dialect = inbox.store.dialect
    with inbox.transaction() as tx:
        first = int(tx.execute("SELECT max(seq) FROM onceward_ledger").fetchall()[0][0]) + 1
        ids = {name: number for number, name in tx.execute("SELECT id, name FROM onceward_name").fetchall()}
        subscription = tx.execute("SELECT id FROM onceward_subscription WHERE type = 'keyed'").fetchall()[0][0]
        rows = f"({_NUMBERS[dialect].format(first=first, last=first + waiting)}) AS n (g)"
        if dialect == "sqlite":
            tx.execute(f"CREATE TEMP TABLE n AS {_NUMBERS[dialect].format(first=first, last=first + waiting)}")
            rows = "n"
        consumer, source = ids["default"], ids["bench"]
        tx.execute(
            "INSERT INTO onceward_ledger (seq, consumer, source, id, hash, received_at) "
            f"SELECT g, {consumer}, {source}, {_ID[dialect]}, {_HASH[dialect]}, {_NOW[dialect]} FROM {rows}"
        )
        tx.execute(
            "INSERT INTO onceward_body (seq, source, id, type, version, key, body, received_at) "
            f"SELECT g, {source}, 'blocked' || g, 'keyed', 1, 'k', {_HASH[dialect]}, {_NOW[dialect]} FROM {rows}"
        )
        tx.execute(
            "INSERT INTO onceward_queue (seq, subscription, key_hash, place, state) "
            f"SELECT g, {subscription}, 1, g, CASE WHEN g = {first} THEN 'dead' ELSE 'waiting' END FROM {rows}"
        )
        if dialect == "postgres":
            tx.execute(f"SELECT setval('onceward_seq', {first + waiting})")
            tx.execute("ANALYZE onceward_queue")
            tx.execute("ANALYZE onceward_body")
