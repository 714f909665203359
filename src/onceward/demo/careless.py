"""The other consumer of the demo, as it is often written: look whether the message is known, do the work, remember it.

Every statement is a commit of its own. Two copies at the same time both find that the message is not known, and a
process that dies between the work and the memory of it does the work again: no care in between can close these gaps.
It has what a broker gives: each delivery goes to one worker, and comes again when that one is dead.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from onceward.demo.shop import HANDLER_SECONDS
from onceward.message import Arguments
from onceward.runtime.supervisor import follow_parent

FILE = "careless.db"
TABLES = """
CREATE TABLE delivery (place integer PRIMARY KEY, message text NOT NULL, account text NOT NULL, amount integer NOT NULL,
                       poison text, worker integer, tries integer NOT NULL DEFAULT 0);
CREATE TABLE seen (message text PRIMARY KEY);
CREATE TABLE payment (message text NOT NULL, account text NOT NULL, amount integer NOT NULL);
"""
MOST_TRIES = 3
"""The broker drops a delivery that has killed so many workers."""
IDLE_SECONDS = 0.01


def connect(path: Path) -> sqlite3.Connection:
    """A connection that commits every statement; fast, for no machine is switched off here."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def create(path: Path) -> None:
    """Make the tables."""
    with closing(connect(path)) as connection:
        connection.executescript(TABLES)


def deliver(path: Path, placed: Iterable[tuple[int, Arguments]]) -> None:
    """What a sender puts into the broker; copies of a message are next to each other, however fast the senders are."""
    rows = []
    for place, message in placed:
        data = message["data"]
        rows.append((place, message["id"], data["account"], data["amount"], data.get("poison")))
    with closing(connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        insert = "INSERT INTO delivery (place, message, account, amount, poison) VALUES (?, ?, ?, ?, ?)"
        connection.executemany(insert, rows)
        connection.execute("COMMIT")


def deliver_again(path: Path, pid: int) -> int:
    """The broker notices that a worker is dead; returns how many of its deliveries come again."""
    with closing(connect(path)) as connection:
        return connection.execute("UPDATE delivery SET worker = NULL WHERE worker = ?", [pid]).rowcount


CLAIM = """
UPDATE delivery SET worker = ?, tries = tries + 1
WHERE place = (SELECT place FROM delivery WHERE worker IS NULL ORDER BY place LIMIT 1)
RETURNING place, message, account, amount, poison, tries
"""


def work(path: Path) -> None:
    """Take deliveries until killed."""
    connection = connect(path)
    while True:
        taken = connection.execute(CLAIM, [os.getpid()]).fetchall()
        for place, message, account, amount, poison, tries in taken:
            if tries <= MOST_TRIES and poison != "rejected":
                handle(connection, message, account, amount, poison)
            connection.execute("DELETE FROM delivery WHERE place = ?", [place])
        if not taken:
            time.sleep(IDLE_SECONDS)


def handle(connection: sqlite3.Connection, message: str, account: str, amount: int, poison: str | None) -> None:
    """Check, work, then remember."""
    if connection.execute("SELECT 1 FROM seen WHERE message = ?", [message]).fetchone():
        return
    if poison == "deadly":
        os._exit(1)
    time.sleep(HANDLER_SECONDS)
    connection.execute("INSERT INTO payment VALUES (?, ?, ?)", [message, account, amount])
    time.sleep(HANDLER_SECONDS)
    connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", [message])


if __name__ == "__main__":
    follow_parent(int(sys.argv[2]))
    work(Path(sys.argv[1]))
