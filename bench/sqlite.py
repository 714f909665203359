"""SQLite, durable (WAL, synchronous FULL): one UPDATE for each message, beside hand-written batches and the textbook's loop.

Exact: one effect for each message. The peers only take jobs off their queue, and have run each number exactly once.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from bench import lineup
from bench.figures import Figures, expect
from bench.inboxes import inbox_at
from bench.messages import ROWS, messages
from bench.race import ours, race
from bench.scale import Scale

_ROWS = f"WITH RECURSIVE i (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM i WHERE id < {ROWS - 1}) SELECT id, 0 FROM i"
_TABLES = (
    "CREATE TABLE target (id integer PRIMARY KEY, n integer NOT NULL)",
    f"INSERT INTO target {_ROWS}",
    "CREATE TABLE textbook (id text PRIMARY KEY, payload text)",
)

# How a backlog is taken: by a worker; and by hand, with and without a note of who works on what.
_DRAINING = {
    "onceward": ("contenders", "drain"),
    "by hand, 100 at a time": ("by_hand", "sqlite"),
    "by hand, with notes": ("by_hand", "sqlite_noted"),
}


def measure(scale: Scale, figures: Figures) -> None:
    """One repetition of every contender."""
    with tempfile.TemporaryDirectory() as folder:
        backlog = Path(folder) / "backlog.db"
        fill(backlog, scale.messages, figures)
        for name, contender in _DRAINING.items():
            _raced(backlog, name, scale.messages, contender, figures)
        book = Path(folder) / "textbook.db"
        with closing(sqlite3.connect(book)) as connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.commit()
        finish = race([ours("contenders", "textbook_sqlite", book, scale.crawling)])
        _check("sqlite: textbook", book, scale.crawling)
        figures.add("sqlite: textbook", len(messages(scale.crawling, "")) / finish.seconds)
        for peer in lineup.SQLITE:
            lineup.attempt(peer, f"{folder}/{peer.name}.db", f"sqlite: {peer.name}", scale, figures)


def fill(path: Path, count: int, figures: Figures) -> None:
    """A backlog to drain."""
    inbox = inbox_at(f"sqlite:///{path}")
    try:
        inbox.migrate()
        with inbox.transaction() as tx:
            for statement in _TABLES:
                tx.execute(statement)
        inbox.receive_many(messages(count, "update"))  # type: ignore[arg-type] # the shape of receive's arguments
    finally:
        inbox.close()
    figures.notes["sqlite"] = _pragmas(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _raced(backlog: Path, name: str, count: int, contender: tuple[str, str], figures: Figures) -> None:
    module, kind = contender
    path = shutil.copy(backlog, backlog.with_name(f"{kind}.db"))
    finish = race([ours(module, kind, f"sqlite:///{path}" if module == "contenders" else path)])
    expect(f"sqlite, {name}: finished", finish.answers, [count])
    _check(f"sqlite, {name}", Path(path), count)
    figures.add(f"sqlite: {name}", count / finish.seconds)
    figures.costs[f"sqlite: {name}"] = {"clients": round(finish.processor * 1e6 / count, 1), "server": 0.0}


def _check(what: str, path: Path, count: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        expect(f"{what}: effects", connection.execute("SELECT sum(n) FROM target").fetchone(), (count,))


def _pragmas(path: Path) -> dict[str, object]:
    with closing(sqlite3.connect(path)) as connection:
        return {"journal_mode": connection.execute("PRAGMA journal_mode").fetchone()[0], "synchronous": "FULL"}
