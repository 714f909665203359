"""SQLite, durable (WAL, synchronous FULL): one UPDATE for each message, beside hand-written batches and the textbook's loop.

Exact: one effect for each message. The peers only take jobs off their queue, and have run each number exactly once.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from bench import lineup
from bench.contest import Contender, compete
from bench.figures import Figures, expect
from bench.ground import LEFT
from bench.inboxes import GROUP, inbox_at
from bench.messages import ROWS, messages
from bench.observers import at_sqlite
from bench.race import Finish, ours, race
from bench.scale import Scale

_ROWS = f"WITH RECURSIVE i (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM i WHERE id < {ROWS - 1}) SELECT id, 0 FROM i"
_TABLES = (
    "CREATE TABLE target (id integer PRIMARY KEY, n integer NOT NULL)",
    f"INSERT INTO target {_ROWS}",
    "CREATE TABLE textbook (id text PRIMARY KEY, payload text)",
)
_DURABLE = {"processes": 1, "journal": "WAL", "synchronous": "FULL"}

# How a backlog is taken: by a worker; and by hand, with and without a claim.
_DRAINING = (
    ("onceward", ("contenders", "drain"), 24_000),
    (f"by hand, {GROUP} at a time", ("by_hand", "sqlite"), 75_000),
    ("by hand, with notes", ("by_hand", "sqlite_claimed"), 55_000),
)


def measure(folder: Path, scale: Scale, figures: Figures) -> None:
    """One repetition of every contender; backlogs stay in the folder for the next one."""
    for name, command, guess in _DRAINING:
        used = _DURABLE | {"group": GROUP}
        package = "onceward" if name == "onceward" else ""
        contender = Contender(f"sqlite: {name}", guess, "sqlite3", f"bench/{command[0]}.py", used, package)
        _drained(folder, scale, figures, contender, command)
    _textbook(folder, scale, figures)
    for peer in lineup.SQLITE:
        lineup.measure_file(peer, folder, scale, figures)


def filled(folder: Path, count: int) -> Path:
    """A backlog to drain."""
    path = folder / f"backlog_{count}.db"
    if path.exists():
        return path
    inbox = inbox_at(f"sqlite:///{path}")
    try:
        inbox.migrate()
        with inbox.transaction() as tx:
            for statement in _TABLES:
                tx.execute(statement)
        inbox.receive_many(messages(count, "update"))  # type: ignore[arg-type] # the shape of receive's arguments
    finally:
        inbox.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def _drained(folder: Path, scale: Scale, figures: Figures, contender: Contender, command: tuple[str, str]) -> None:
    def run(count: int) -> tuple[int, Finish]:
        path = Path(shutil.copy(filled(folder, count), folder / "drained.db"))
        address = f"sqlite:///{path}" if command[0] == "contenders" else path
        with at_sqlite(path, LEFT) as observer:
            finish = race([ours(*command, address)], observer)
            figures.notes[f"{contender.name}: journal"] = observer.journal()
        expect(f"{contender.name}: finished", finish.answers, [count])
        _check(contender.name, path, count)
        _removed(path)
        return count, finish

    compete(contender, scale, figures, run)


def _textbook(folder: Path, scale: Scale, figures: Figures) -> None:
    name, path = "sqlite: textbook", folder / "textbook.db"

    def run(count: int) -> tuple[int, Finish]:
        with closing(sqlite3.connect(path)) as connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.commit()
        with at_sqlite(path) as observer:
            finish = race([ours("contenders", "textbook_sqlite", path, count)], observer)
            figures.notes[f"{name}: journal"] = observer.journal()
        _check(name, path, count)
        copies = len(messages(count, "")) - count
        expect(f"{name}: answers", finish.answers, [{"accepted": count, "duplicate": copies}])
        _removed(path)
        return count + copies, finish

    compete(Contender(name, 5_000, "sqlite3", "bench/contenders.py", _DURABLE | {"group": 1}), scale, figures, run)


def _check(what: str, path: Path, count: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        expect(f"{what}: effects", connection.execute("SELECT sum(n) FROM target").fetchone(), (count,))


def _removed(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
