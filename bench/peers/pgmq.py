"""pgmq: the functions of its release, as its Python package installs them, called with psycopg: the fastest way there is."""

from __future__ import annotations

import json

import psycopg
from pgmq.install import install_pgmq_from_sql

from bench.messages import body
from bench.peers.adapter import TALLY, Answer
from bench.race import take_part

QUEUE = "bench"
BATCH = 500
"""1000 at a time was no faster, 100 slower by a quarter."""
HIDDEN = 30
"""For how many seconds a message that was read is hidden from others."""


def fill(url: str, count: int) -> None:
    """Store numbered jobs."""
    install_pgmq_from_sql(dsn=url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pgmq.create(%s)", [QUEUE])
        for first in range(0, count, 1000):
            bodies = [json.dumps(body(number)) for number in range(first, min(first + 1000, count))]
            connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", [QUEUE, bodies])
        connection.execute("VACUUM ANALYZE")


def drain(url: str, _count: int) -> None:
    """One process of a race."""
    cursor = psycopg.connect(url, autocommit=True).cursor(binary=True)
    read = "SELECT msg_id, message::text FROM pgmq.read(%s::text, %s::integer, %s::integer)"

    def work() -> Answer:
        while rows := cursor.execute(read, [QUEUE, HIDDEN, BATCH]).fetchall():
            for _, text in rows:
                TALLY.run(text)
            numbers = [number for number, _ in rows]
            cursor.execute("SELECT pgmq.delete(%s::text, %b::bigint[])", [QUEUE, numbers]).fetchall()
        return TALLY.answer()

    take_part(work)
