"""The database all contenders get: a fresh copy of the same one, migrated, with a domain table, on durable settings."""

from __future__ import annotations

import itertools
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.figures import Figures, expect
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

    @contextmanager
    def hastily(self, url: str) -> Iterator[None]:
        """While a backlog is made, commits in this database do not wait for the disk."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
            yield
            connection.execute(f"ALTER DATABASE {name} RESET synchronous_commit")
            connection.execute("CHECKPOINT")

    @contextmanager
    def costs(self, figures: Figures, name: str, count: int) -> Iterator[Cost]:
        """Note what a contender costs the processors for each message: its own processes, and the server's."""
        before = self._processor()
        cost = Cost()
        yield cost
        server = self._processor() - before
        noted = {"clients": round(cost.clients * 1e6 / count, 1), "server": round(server * 1e6 / count, 1)}
        figures.costs[name] = noted

    def _processor(self) -> float:
        """The processor's seconds of the server's processes, also of those that have ended."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(stat.parent.name) == self.server.pid:
                ticks += sum(map(int, fields[11:15]))
            elif int(fields[1]) == self.server.pid:
                ticks += sum(map(int, fields[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cost:
    """What the clients of a contender have used."""

    clients: float = 0.0


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


def pgbench(  # noqa: PLR0913 - what pgbench is told
    url: str, script: str, *, clients: int, transactions: int, variables: Mapping[str, int], cost: Cost
) -> float:
    """Transactions a second of a script of `limits/`, without the time it takes to connect."""
    before = _children()
    program = install.postgresql_bin() / "pgbench"
    command = [str(program), "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2))]
    command += ["-t", str(-(-transactions // clients)), "-f", str(LIMITS / f"{script}.sql")]
    for name, value in variables.items():
        command += ["-D", f"{name}={value}"]
    done = subprocess.run([*command, url], capture_output=True, text=True, check=False)
    found = re.search(r"tps = ([\d.]+) \(without initial", done.stdout)
    if done.returncode or not found or "failed transactions: 0 " not in done.stdout:
        raise RuntimeError(f"pgbench {script}: {done.stderr.strip() or done.stdout}")
    cost.clients = _children() - before
    return float(found[1])


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def drain_by_pgbench(url: str, script: str, *, clients: int, groups: int, cost: Cost) -> float:
    """Messages a second of a script that claims and finishes groups, until nothing is left.

    Every client may have to do all of it, so each gets as many transactions as that takes; those that find nothing any
    more do not count: the time is the server's own, from the first group that was finished to the last.
    """
    began = one(url, "SELECT clock_timestamp()")
    pgbench(url, script, clients=clients, transactions=(groups + 2) * clients, variables={"token": 0}, cost=cost)
    with psycopg.connect(url) as connection:
        runs = connection.execute("SELECT finished_at, messages FROM onceward_run ORDER BY finished_at").fetchall()
    (first, before), (last, _) = runs[0], runs[-1]
    if len(runs) == 1:
        first, before = began, 0
    return float((sum(count for _, count in runs) - before) / (last - first).total_seconds())


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
