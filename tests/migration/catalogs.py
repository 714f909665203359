"""What a database contains, in a form that can be compared."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any

import psycopg

_POSTGRES = (
    """SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default, is_identity
       FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 3""",
    "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    """SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid) FROM pg_constraint
       WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2""",
    """SELECT relname, relkind, reloptions FROM pg_class
       WHERE relnamespace = 'public'::regnamespace ORDER BY 1""",
    "SELECT sequencename, data_type, start_value, increment_by, cache_size FROM pg_sequences ORDER BY 1",
)


def run(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run SQL by hand, in one transaction; several statements are fine."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path(url), isolation_level=None)) as database:
            if ";" not in statement.rstrip(";\n"):
                return database.execute(statement).fetchall()
            database.executescript(f"BEGIN;\n{statement}\nCOMMIT;")
            return []
    if url.startswith("mysql"):
        return _run_mysql(url, statement)
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _run_mysql(url: str, statement: str) -> list[tuple[Any, ...]]:
    import pymysql  # noqa: PLC0415 - only tests on MariaDB need it
    from pymysql.constants import CLIENT  # noqa: PLC0415 - as above

    from onceward.stores.mysql.address import Address  # noqa: PLC0415 - as above

    options = {"autocommit": True, "ssl_disabled": True, "client_flag": CLIENT.MULTI_STATEMENTS}
    with pymysql.connect(**Address.of(url).arguments(), **options) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        rows = list(cursor.fetchall())
        while cursor.nextset():
            rows = list(cursor.fetchall())
        return rows


def catalog(url: str) -> list[Any]:
    """Tables, columns, indexes, constraints, sequences, and the recorded versions."""
    if url.startswith("sqlite"):
        found = run(url, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
        return [(*row[:3], re.sub(r"\s+", " ", row[3] or "")) for row in found]
    if url.startswith("mysql"):
        # The number that is drawn next is not a part of the table.
        shown = [run(url, f"SHOW CREATE TABLE `{name}`")[0][:2] for name in sorted(tables(url))]
        found = [(name, re.sub(r" AUTO_INCREMENT=\d+", "", text)) for name, text in shown]
        views = "SELECT table_name, replace(view_definition, concat('`', database(), '`.'), '')"
        return [*found, run(url, f"{views} FROM information_schema.views WHERE table_schema = database() ORDER BY 1")]
    return [run(url, statement) for statement in _POSTGRES]


def tables(url: str) -> set[str]:
    """The names of all tables."""
    if url.startswith("sqlite"):
        names = run(url, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    elif url.startswith("mysql"):
        kind = "table_schema = database() AND table_type = 'BASE TABLE'"
        names = run(url, f"SELECT table_name FROM information_schema.tables WHERE {kind}")
    else:
        names = run(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {name for (name,) in names}


def path(url: str) -> str:
    """The file behind a SQLite address."""
    return url.removeprefix("sqlite:///")
