"""pgmq: the functions of its release, as its Python package installs them, called with psycopg: the fastest way there is."""

from __future__ import annotations

import psycopg
from pgmq.install import install_pgmq_from_sql

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell

QUEUE = "bench"
HIDDEN = 30
"""For how many seconds a message that was read is hidden from others."""


def fill(url: str, count: int, _settings: Settings) -> None:
    """Store numbered jobs."""
    install_pgmq_from_sql(dsn=url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pgmq.create(%s)", [QUEUE])
        for bodies in texts(count):
            connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", [QUEUE, bodies])
        connection.execute("VACUUM ANALYZE")


def drain(url: str, settings: Settings) -> None:
    """One process of a race."""
    cursor = psycopg.connect(url, autocommit=True).cursor(binary=True)
    read = "SELECT msg_id, message::text FROM pgmq.read(%s::text, %s::integer, %s::integer)"
    ready()
    while rows := cursor.execute(read, [QUEUE, HIDDEN, settings["batch"]]).fetchall():
        for _, text in rows:
            TALLY.run(text)
        numbers = [number for number, _ in rows]
        cursor.execute("SELECT pgmq.delete(%s::text, %b::bigint[])", [QUEUE, numbers]).fetchall()
    tell(TALLY.answer())
