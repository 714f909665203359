"""`python -m bench.by_hand KIND ...`: the same writes by hand, with the driver alone: what Python itself allows.

Nothing here is safe against what onceward is safe against: nobody else takes over, nothing fails, no limit is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import sys
from collections import Counter
from typing import Any

import psycopg

from bench.contenders import in_batches, in_threads
from bench.ground import names
from bench.inboxes import GROUP, ONE
from bench.messages import messages
from bench.race import ready, take_part, tell

_READY = "state = 'ready' AND token IS NULL AND isolation = 0 AND NOT outgoing"


def sqlite(path: str) -> None:
    """At its best: take a group of onceward's own backlog in each transaction, apply and delete it."""
    connection = _opened(path)
    take_part(lambda: _taken(connection, _READY))


def sqlite_claimed(path: str) -> None:
    """The same with a claim that says who works on what, committed before."""
    connection = _opened(path)

    def work() -> int:
        done = token = 0
        while True:
            token += 1
            due = f"SELECT seq FROM onceward_queue WHERE {_READY} ORDER BY seq LIMIT {GROUP}"
            connection.execute(f"UPDATE onceward_queue SET worker = 1, token = ? WHERE seq IN ({due})", [token])
            taken = _taken(connection, f"worker = 1 AND token = {token}")
            done += taken
            if not taken:
                return done

    take_part(work)


def _opened(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _taken(connection: sqlite3.Connection, which: str) -> int:
    found = (
        f"SELECT seq, body FROM onceward_queue JOIN onceward_body USING (seq) WHERE {which} ORDER BY seq LIMIT {GROUP}"
    )
    done = 0
    while True:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(found).fetchall()
        if not rows:
            connection.execute("COMMIT")
            return done
        for _, body in rows:
            if connection.execute(ONE["sqlite"], [json.loads(body)["row"]]).rowcount != 1:
                raise LookupError(body)
        numbers = json.dumps([seq for seq, _ in rows])
        connection.execute("DELETE FROM onceward_queue WHERE seq IN (SELECT value FROM json_each(?))", [numbers])
        connection.execute(
            "INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages) "
            "VALUES (1, 0, 'limit', 0, ?, ?, ?, ?)",
            [rows[0][0], rows[-1][0], numbers, len(rows)],
        )
        connection.execute("COMMIT")
        done += len(rows)


_CLOCK = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
_REMEMBER = f"""
WITH fresh AS (
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    VALUES (nextval('onceward_seq'), %(consumer)s, %(source)s, 0, 1, %(stored)s, %(hash)s, {_CLOCK})
    ON CONFLICT (consumer, source, id) DO NOTHING RETURNING seq, received_at
), stored AS (
    INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
    SELECT seq, %(source)s, %(id)s, 'update', 1, %(body)s, received_at FROM fresh
)
SELECT seq FROM fresh"""
_RUN = f"""
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
VALUES (1, 0, 'limit', {_CLOCK}, %(seq)s, %(seq)s, ARRAY[%(seq)s::bigint], 1)"""


def inline(url: str, count: str, threads: str) -> None:
    """One transaction for each message with the writes of `process`: remember it, apply it, write its run."""
    deliveries, known = messages(int(count), "update"), names(url)
    connections = [psycopg.connect(url) for _ in range(int(threads))]

    def process(message: dict[str, Any], connection: psycopg.Connection[Any]) -> str:
        with connection.transaction():
            fresh = connection.execute(_REMEMBER, {**known, **_row(message)}).fetchone()
            if fresh is None:
                return "duplicate"
            if connection.execute(ONE["postgres"], [message["data"]["row"]]).rowcount != 1:
                raise LookupError(message["data"]["row"])
            connection.execute(_RUN, {"seq": fresh[0]})
        return "accepted"

    take_part(lambda: Counter(in_threads(int(threads), deliveries, process, connections)))


_REMEMBER_MANY = f"""
WITH input AS MATERIALIZED (
    SELECT nextval('onceward_seq') AS seq, i.*
    FROM unnest(%(stored)b::bytea[], %(hash)b::bytea[], %(id)b::text[], %(body)b::bytea[]) AS i (stored, hash, id, body)
), fresh AS (
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT seq, %(consumer)s, %(source)s, 0, 1, stored, hash, {_CLOCK} FROM input ORDER BY stored
    ON CONFLICT (consumer, source, id) DO NOTHING RETURNING seq, received_at
), kept AS (
    INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
    SELECT seq, %(source)s, id, 'update', 1, body, received_at FROM input JOIN fresh USING (seq)
)
SELECT id, seq FROM input JOIN fresh USING (seq)"""
_RUN_MANY = f"""
INSERT INTO onceward_run (worker, token, code_version, finished_at, first_seq, last_seq, seqs, messages)
VALUES (1, 0, 'limit', {_CLOCK}, %(first)s, %(last)s, %(seqs)b::bigint[], %(number)s)"""


def direct(url: str, count: str) -> None:
    """One transaction for each batch with the writes of `process_many`: remember all, apply each, write one run."""
    batches, known = in_batches(messages(int(count), "update")), names(url)
    connection = psycopg.connect(url)

    def process(batch: list[dict[str, Any]]) -> dict[str, int]:
        rows = {message["id"]: message["data"]["row"] for message in batch}
        made = [_row(message) for message in {message["id"]: message for message in batch}.values()]
        columns = {name: [one[name] for one in made] for name in ("stored", "hash", "id", "body")}
        with connection.transaction():
            fresh = connection.execute(_REMEMBER_MANY, {**known, **columns}).fetchall()
            for name, _ in fresh:
                if connection.execute(ONE["postgres"], [rows[name]]).rowcount != 1:
                    raise LookupError(name)
            seqs = sorted(seq for _, seq in fresh)
            if seqs:
                done = {"first": seqs[0], "last": seqs[-1], "seqs": seqs, "number": len(seqs)}
                connection.execute(_RUN_MANY, done)
        return {"accepted": len(fresh), "duplicate": len(batch) - len(fresh)}

    take_part(lambda: sum((Counter(process(batch)) for batch in batches), Counter[str]()))


def _row(message: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps(message["data"]).encode()
    stored = b"r" + message["id"].encode()
    return {"stored": stored, "hash": hashlib.sha256(body).digest(), "id": message["id"], "body": body}


_STORE = f"""
WITH input AS MATERIALIZED (
    SELECT nextval('onceward_seq') AS seq, i.*
    FROM unnest(%(stored)b::bytea[], %(hash)b::bytea[], %(id)b::text[], %(body)b::bytea[]) AS i (stored, hash, id, body)
), fresh AS (
    INSERT INTO onceward_ledger (seq, consumer, source, slot, type_hash, id, hash, received_at)
    SELECT seq, %(consumer)s, %(source)s, 0, 1, stored, hash, {_CLOCK} FROM input ORDER BY stored
    ON CONFLICT (consumer, source, id) DO NOTHING RETURNING seq, received_at
), kept AS (
    INSERT INTO onceward_body (seq, source, id, type, version, body, received_at)
    SELECT seq, %(source)s, id, 'nothing', 1, body, received_at FROM input JOIN fresh USING (seq)
), queued AS (
    INSERT INTO onceward_queue (seq, subscription, slot, place, state) SELECT seq, %(subscription)s, 0, seq, 'ready' FROM fresh
)
SELECT id FROM input JOIN fresh USING (seq)"""


def receive(url: str, count: str, callers: str) -> None:
    """Tasks that each wait for their own message; one stores for all that wait."""
    asyncio.run(_receive(url, int(count), int(callers)))


async def _receive(url: str, count: int, callers: int) -> None:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    cursor, known = connection.cursor(), names(url)
    deliveries = iter(messages(count, "nothing"))
    waiting: list[tuple[dict[str, Any], asyncio.Future[str]]] = []

    async def call() -> list[str]:
        statuses = []
        for message in deliveries:
            answer = asyncio.get_running_loop().create_future()
            waiting.append((_row(message), answer))
            statuses.append(await answer)
        return statuses

    async def store() -> None:
        while True:
            shared, waiting[:] = waiting[:], []
            if shared:
                columns = {name: [row[name] for row, _ in shared] for name in ("stored", "hash", "id", "body")}
                await cursor.execute(_STORE, {**known, **columns}, prepare=True)
                fresh = {one for (one,) in await cursor.fetchall()}
                for row, answer in shared:
                    answer.set_result("accepted" if row["id"] in fresh else "duplicate")
            await asyncio.sleep(0)

    ready()
    storing = asyncio.create_task(store())
    found = await asyncio.gather(*(call() for _ in range(callers)))
    tell(Counter(status for part in found for status in part))
    storing.cancel()
    await connection.close()


KINDS = (sqlite, sqlite_claimed, inline, direct, receive)

if __name__ == "__main__":
    {kind.__name__: kind for kind in KINDS}[sys.argv[1]](*sys.argv[2:])
