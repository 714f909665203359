"""How many bytes a message takes: `python -m proof.sizing` measures it and writes the tables in docs/howto/sizing.md.

Invariant: what is measured is what the database keeps after its own cleaning (VACUUM), so the figures are of rows, not
of space that is used again. They depend on the stores' schema alone, not on the machine.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from datetime import timedelta
from pathlib import Path

from onceward import Inbox, Settings
from onceward.message import Arguments
from proof import report
from proof.__main__ import FIGURES, PAGE

RECORD = FIGURES / "sizing.json"
SIZING_PAGE = PAGE.with_name("howto") / "sizing.md"
BEGIN, END = "<!-- made by `make sizing` -->\n", "<!-- end -->\n"
MESSAGES, PAYLOAD = 50_000, 1000
PER_DAY, BODY_DAYS, ID_DAYS = (10_000, 100_000, 1_000_000, 10_000_000), 7, 30
GIB = 2**30


def message(number: int, text: str) -> Arguments:
    """One as a payment provider sends it."""
    data = {"order_id": number % 100_000, "text": text}
    return {"source": "stripe", "id": f"evt_1OqX8dKZ2eZvKYlo2C{number:08d}", "type": "order.paid", "data": data}


def fill(url: str, prefix: str, *, bodies: bool) -> None:
    """Finished messages, with their bodies or without."""
    days = timedelta(days=BODY_DAYS if bodies else 0)
    inbox = Inbox(url, prefix=prefix, settings=Settings(body_retention=days, maintenance=None))
    inbox.migrate()
    inbox.on("order.paid", key="order_id", guarantee="at-least-once")(lambda message: None)  # noqa: ARG005 - does nothing
    text = "x" * (PAYLOAD - len('{"order_id":12345,"text":""}'))
    for first in range(0, MESSAGES, 1000):
        batch = (message(number, text) for number in range(first, first + 1000))
        inbox.receive_many(batch)
    inbox.drain()
    if not bodies:
        inbox.retention.prune()
    inbox.close()


def on_sqlite(*, bodies: bool) -> int:
    """Bytes of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sized.db"
        fill(f"sqlite:///{path}", "onceward_", bodies=bodies)
        with sqlite3.connect(path) as connection:
            connection.execute("VACUUM")
        connection.close()
        return path.stat().st_size


def on_postgres(url: str) -> tuple[int, int]:
    """Bytes of the tables of bodies, and of all others, with their indexes."""
    import psycopg  # noqa: PLC0415 - where there is a server

    fill(url, "sized_", bodies=True)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM FULL")
        row = connection.execute(
            "SELECT sum(size) FILTER (WHERE name LIKE 'sized_body%'), sum(size) FILTER (WHERE name NOT LIKE 'sized_body%') "
            "FROM (SELECT relname AS name, pg_total_relation_size(oid) AS size FROM pg_class "
            "WHERE relkind = 'r' AND relname LIKE 'sized_%') AS tables"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def measured(url: str) -> dict[str, dict[str, int]]:
    """Bytes for each message, by store: what is remembered, and what its body adds to the body's own bytes."""
    full, without = (on_sqlite(bodies=bodies) for bodies in (True, False))
    sizes = {"SQLite": (full - without, without), "PostgreSQL": on_postgres(url)}
    return {
        store: {"remembered": round(others / MESSAGES), "around_a_body": round(bodies / MESSAGES - PAYLOAD)}
        for store, (bodies, others) in sizes.items()
    }


def gigabytes(entry: dict[str, int], per_day: int, body: int) -> tuple[float, float]:
    """Space for bodies and for what is remembered, with the retention that is the default."""
    bodies = per_day * BODY_DAYS * (body + entry["around_a_body"]) / GIB
    return bodies, per_day * ID_DAYS * entry["remembered"] / GIB


def tables() -> str:
    """The tables as they should be."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    lines = ["| bytes for each message | remembered (30 days) | body (7 days) |", "|---|---:|---:|"]
    for store, entry in record["stores"].items():
        lines.append(f"| {store} | {entry['remembered']:.0f} | its own + {entry['around_a_body']:.0f} |")
    lines += [
        "",
        "| messages a day | a second | remembered | bodies of 1 KB | bodies of 10 KB |",
        "|---:|---:|---:|---:|---:|",
    ]
    entry = record["stores"]["PostgreSQL"]
    for per_day in PER_DAY:
        (small, ids), (large, _) = gigabytes(entry, per_day, 1000), gigabytes(entry, per_day, 10_000)
        cells = " | ".join(f"{space:,.1f} GiB" for space in (ids, small, large))
        lines.append(f"| {per_day:,} | {per_day / 86_400:,.1f} | {cells} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """The page with the tables as they should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{tables()}{END}{after}"


def main() -> None:
    """Measure on a server of the tests, and write record and page."""
    from tests.servers import PostgresServer  # noqa: PLC0415 - only to measure

    server = PostgresServer().start()
    try:
        figures = {"run": "sizing", "messages": MESSAGES, "payload": PAYLOAD, "stores": measured(server.url())}
    finally:
        server.stop()
    report.write(str(RECORD), figures, ["sqlite", "postgres"])
    SIZING_PAGE.write_text(with_tables(SIZING_PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
