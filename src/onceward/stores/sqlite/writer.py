"""Taking SQLite's only writer, and waiting for it no longer than a caller wants to."""

from __future__ import annotations

import sqlite3

from onceward.errors import StoreBusy

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def begin_within(cursor: sqlite3.Cursor, limit: float) -> None:
    """BEGIN IMMEDIATE; raises `StoreBusy` where another writer holds the database for longer than `limit` seconds."""
    (usual,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    cursor.execute(f"PRAGMA busy_timeout = {int(limit * 1000)}")
    try:
        cursor.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in BUSY:
            raise
        raise StoreBusy(f"another writer has held the SQLite database for {limit:g} s") from error
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {usual}")
