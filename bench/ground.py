"""The database all contenders get: a fresh copy of the same one, migrated, with a domain table, on durable settings."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.figures import expect
from bench.inboxes import inbox_at
from bench.messages import ROWS
from tests.servers import install
from tests.servers.postgres import PostgresServer

LIMITS = Path(__file__).with_name("limits")
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


def pgbench(url: str, script: str, *, clients: int, transactions: int, **variables: int) -> float:
    """Transactions a second of a script of `limits/`, without the time it takes to connect."""
    program = install.postgresql_bin() / "pgbench"
    command = [str(program), "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2))]
    command += ["-t", str(-(-transactions // clients)), "-f", str(LIMITS / f"{script}.sql")]
    for name, value in variables.items():
        command += ["-D", f"{name}={value}"]
    done = subprocess.run([*command, url], capture_output=True, text=True, check=False)
    found = re.search(r"tps = ([\d.]+) \(without initial", done.stdout)
    if done.returncode or not found or "failed transactions: 0 " not in done.stdout:
        raise RuntimeError(f"pgbench {script}: {done.stderr.strip() or done.stdout}")
    return float(found[1])


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


def names(url: str) -> dict[str, int]:
    """The numbers under which scripts write."""
    subscription = "SELECT id FROM onceward_subscription WHERE type = 'nothing'"
    found = {name: f"SELECT id FROM onceward_name WHERE name = '{value}'" for name, value in _NAMES.items()}
    return {name: int(one(url, query)) for name, query in {**found, "subscription": subscription}.items()}


_NAMES = {"consumer": "default", "source": "bench"}
