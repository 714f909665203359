"""The database all contenders get: a fresh copy of the same one, migrated, with a domain table, on durable settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from bench.figures import Inexact, expect
from bench.inboxes import inbox_at
from bench.messages import ROWS
from bench.observers import at_postgres
from bench.race import Finish, race

if TYPE_CHECKING:
    from tests.servers.postgres import PostgresServer  # contenders import this module, and need no server of the tests

LEFT = "SELECT seq FROM onceward_queue ORDER BY seq DESC LIMIT 1"
"""What is left of onceward's backlog."""
LEFT_ALIVE = "SELECT seq FROM onceward_queue WHERE state <> 'dead' ORDER BY seq DESC LIMIT 1"
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
}
"""Durable; large enough that no checkpoint falls on one contender and not on the other."""


class Ground:
    """A private server on which databases are made, used once and dropped."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._numbers = itertools.count()
        self._templates: set[str] = set()
        self.template("empty", prepare, like=None)

    def template(self, name: str, fill: Callable[[str], None], *, like: str | None = "empty") -> str:
        """A database that others are copied from, filled once."""
        if name not in self._templates:
            url = self.server.create_database(name, like)
            fill(url)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
                connection.execute("CHECKPOINT")
            self._templates.add(name)
        return name

    def discard(self, name: str) -> None:
        """Drop a template, and the space it takes."""
        self.server.drop_database(name)
        self._templates.discard(name)

    @contextmanager
    def copy(self, template: str = "empty") -> Iterator[str]:
        """A fresh copy of a template."""
        name = f"copy_{next(self._numbers)}"
        url = self.server.create_database(name, template)
        try:
            yield url
        finally:
            self.server.drop_database(name)

    @contextmanager
    def bare(self) -> Iterator[str]:
        """A database with nothing in it, for peers."""
        name = f"bare_{next(self._numbers)}"
        url = self.server.create_database(name)
        try:
            yield url
        finally:
            self.server.drop_database(name)

    @contextmanager
    def hastily(self, url: str) -> Iterator[None]:
        """While a backlog is made, commits in this database do not wait for the disk."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
            yield
            connection.execute(f"ALTER DATABASE {name} RESET synchronous_commit")
            connection.execute("CHECKPOINT")

    def race(self, url: str, commands: Sequence[Sequence[str]], left: str = "", *, patience: float = 600) -> Finish:
        """A race on one of its databases, which ends when nothing is left of the backlog, or with the last answer."""
        with at_postgres(url, self.server.pid, left) as observer:
            return race(commands, observer, patience=patience)


def prepare(url: str) -> None:
    """Onceward's tables, its subscriptions, and the domain table."""
    inbox = inbox_at(url)
    try:
        inbox.migrate()
        inbox.receive(source="bench", id="first", type="nothing", data={"number": 0})
        inbox.drain()
    finally:
        inbox.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE onceward_ledger, onceward_body, onceward_run, onceward_worker")
        connection.execute("ALTER SEQUENCE onceward_seq RESTART")
        connection.execute("CREATE TABLE target (id integer PRIMARY KEY, n integer NOT NULL)")
        connection.execute("INSERT INTO target SELECT id, 0 FROM generate_series(0, %s) AS id", [ROWS - 1])
        connection.execute("CREATE TABLE textbook (id text PRIMARY KEY, payload jsonb, processed_at timestamptz)")


def one(url: str, query: str) -> Any:
    """A single value."""
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
        return row[0] if row else None


def check_effects(what: str, url: str, count: int) -> None:
    """The domain table has exactly so many effects."""
    expect(f"{what}: effects", one(url, "SELECT sum(n)::bigint FROM target"), count)


def check_drained(what: str, url: str, count: int) -> None:
    """Each sequence number is in exactly one run, and the queue is empty."""
    counted = (
        "SELECT count(*) FROM (SELECT unnest(seqs) AS seq FROM onceward_run) AS r JOIN onceward_ledger USING (seq)"
    )
    expect(f"{what}: numbers in runs", one(url, counted), count)
    distinct = "SELECT count(DISTINCT seq) FROM (SELECT unnest(seqs) AS seq FROM onceward_run) AS r"
    expect(f"{what}: different numbers in runs", one(url, distinct), count)
    expect(f"{what}: left in the queue", one(url, "SELECT count(*) FROM onceward_queue"), 0)


def check_claims(what: str, url: str, most: int) -> int:
    """No claim was larger than it may be; answers how large the largest was."""
    largest = (
        "SELECT max(n)::integer FROM (SELECT sum(messages) AS n FROM onceward_run GROUP BY worker, token) AS claim"
    )
    found = int(one(url, largest) or 0)
    if found > most:
        raise Inexact(f"{what}: a claim of {found}, and at most {most} are compared")
    return found


def names(url: str) -> dict[str, int]:
    """The numbers under which scripts write."""
    subscription = "SELECT id FROM onceward_subscription WHERE type = 'nothing'"
    found = {name: f"SELECT id FROM onceward_name WHERE name = '{value}'" for name, value in _NAMES.items()}
    return {name: int(one(url, query)) for name, query in {**found, "subscription": subscription}.items()}


_NAMES = {"consumer": "default", "source": "bench"}
