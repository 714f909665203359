"""`make soak MINUTES=n`: a busy inbox for a long time, with everything that may go wrong; nothing may grow.

A few hundred messages a second, one in ten a duplicate, one in twenty failing at first; workers that prune all the time
(messages are kept for seconds, so a minute here is a month elsewhere; so is autovacuum), and now and then a transaction
that stays open. Every few seconds a line: memory, file descriptors, rows and bytes. At the end the second half is
compared with the first, and the effects with what was accepted.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from onceward import Inbox, Message, Retry, RetryPolicy, Settings
from onceward.message import Arguments
from proof import report
from tests.servers.postgres import PostgresServer

MINUTES = float(os.environ.get("MINUTES", "60"))
RATE = int(os.environ.get("RATE", "200"))
JSON = os.environ.get("JSON", "")
"""A file for the figures, if anywhere."""
WATCHED = ("memory", "descriptors", "bytes", "ledger", "body", "run")
KEPT = timedelta(seconds=10)
SETTINGS = Settings(
    lease=timedelta(seconds=3), maintenance=timedelta(seconds=1), body_retention=KEPT / 2, dedupe_retention=KEPT
)
TABLES = ("ledger", "body", "queue", "run", "result", "attempt", "duplicate", "audit", "quarantine")
SIZE = {
    "postgres": "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class "
    "WHERE relkind = 'r' AND relname LIKE 'onceward%'",
    "sqlite": "SELECT (SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%onceward%') + freelist_count * page_size "
    "FROM pragma_freelist_count(), pragma_page_size()",
}
"""What is stored, but for the effects, which stay; in a file, what is free counts too."""
EVERY = 5.0
GROWTH = {"memory": 1.05, "descriptors": 1.1}
"""The second half may have so much more than the first."""
WAVES = 1.3
"""What the rest may have more: pruning and vacuum come in waves."""


class Soak:
    """One inbox under load, and what was seen of it."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.inbox = Inbox(url, settings=SETTINGS)
        self.inbox.migrate()
        with self.inbox.transaction() as tx:
            tx.execute("CREATE TABLE effects (id text, at real)" if self.lite else "CREATE TABLE effects (id text)")
        self.accepted, self.duplicates, self.lines = 0, 0, list[dict[str, float]]()
        self.stop = threading.Event()
        mark = "?" if self.lite else "%s"

        @self.inbox.on("soak", key="key", retry=RetryPolicy(first=timedelta(milliseconds=100)))
        def handle(message: Message, tx: Any) -> Any:
            if message.attempt == 1 and message.data["n"] % 20 == 0:
                raise Retry("the first time never works", after=0.1)
            tx.execute(f"INSERT INTO effects (id) VALUES ({mark})", [message.id])
            return {"n": message.data["n"]}

    @property
    def lite(self) -> bool:
        """Whether this is SQLite."""
        return self.url.startswith("sqlite")

    def feed(self) -> None:
        """Messages at a steady rate; every tenth comes twice."""
        number, chance, begun = 0, random.Random(1), time.monotonic()
        while not self.stop.is_set():
            batch: list[Arguments] = []
            for _ in range(max(RATE // 10, 1)):
                number += 1
                data = {
                    "n": number,
                    "key": number % 997 if number % 4 == 0 else None,
                    "pad": "x" * chance.randrange(600),
                }
                batch.append({"source": "soak", "id": f"m{number}", "type": "soak", "data": data})
            for receipt in self.inbox.receive_many([*batch, *batch[::10]]):
                self.accepted += receipt.status == "accepted"
                self.duplicates += receipt.status == "duplicate"
            time.sleep(max(0.0, begun + number / RATE - time.monotonic()))

    def hold(self) -> None:
        """A transaction that stays open for a while, again and again (on SQLite a reader, which holds the log)."""
        while not self.stop.wait(4):
            with self.inbox.store.raw() if not self.lite else self._reader() as connection:
                connection.execute("SELECT count(*) FROM effects").fetchall()
                self.stop.wait(6)

    @contextmanager
    def _reader(self) -> Iterator[Any]:
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            connection.close()

    def look(self) -> dict[str, float]:
        """What there is now."""
        found: dict[str, float] = {"memory": _memory(), "descriptors": len(list(Path("/proc/self/fd").iterdir()))}
        with self.inbox.transaction() as tx:
            for table in TABLES:
                found[table] = tx.execute(f"SELECT count(*) FROM onceward_{table}").fetchone()[0]
            found["effects"] = tx.execute("SELECT count(*) FROM effects").fetchone()[0]
            found["bytes"] = float(tx.execute(SIZE["sqlite" if self.lite else "postgres"]).fetchone()[0])
        return found

    def run(self, seconds: float) -> dict[str, Any]:
        """Work for so long; answers what was seen: figures, with what grew and what was lost."""
        threads = [
            threading.Thread(target=self.inbox.run, kwargs={"concurrency": 2}, daemon=True),
            threading.Thread(target=self.feed, daemon=True),
            threading.Thread(target=self.hold, daemon=True),
        ]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            self.stop.wait(EVERY)
            with self.inbox.transaction() as tx:
                if not self.lite:
                    tx.execute("SELECT onceward_rotate_partition(2)")
            line = self.look()
            self.lines.append(line)
            rows = "  ".join(f"{table} {line[table]:,.0f}" for table in TABLES if line[table])
            print(
                f"{self.name} {passed:6.0f} s  {line['memory'] / 1e6:.0f} MB  {line['descriptors']:.0f} fds  "
                f"{line['bytes'] / 1e6:.1f} MB stored  effects {line['effects']:,.0f}  {rows}",
                flush=True,
            )
        self.stop.set()
        threads[1].join()
        deadline = time.monotonic() + 60
        while self.look()["effects"] < self.accepted and time.monotonic() < deadline:
            time.sleep(0.2)
        self.inbox.stop()
        threads[0].join()
        return self._verdict()

    def _verdict(self) -> dict[str, Any]:
        effects = self.look()["effects"]
        print(f"{self.name}: {self.accepted:,} accepted, {self.duplicates:,} duplicates, {effects:,.0f} effects")
        settled = self.lines[len(self.lines) // 4 :]
        first, second = settled[: len(settled) // 2], settled[len(settled) // 2 :]
        peaks = {what: [int(max(line[what] for line in part)) for part in (first, second)] for what in WATCHED}
        grown = [
            f"{what} from {before:,} to {after:,}"
            for what, (before, after) in peaks.items()
            if after > before * GROWTH.get(what, WAVES) + 10
        ]
        verdict = "grew: " + "; ".join(grown) if grown else "memory, descriptors, rows and bytes are flat"
        print(f"{self.name}: {verdict}")
        self.inbox.close()
        figures = {"accepted": self.accepted, "duplicates": self.duplicates, "effects": int(effects)}
        return {**figures, "peaks": peaks, "grown": grown}


def _memory() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def main() -> int:
    """Half of the time on each store."""
    seconds = MINUTES * 30
    with tempfile.TemporaryDirectory() as folder, PostgresServer(durable=True) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET autovacuum_naptime = '2s'")
            connection.execute("SELECT pg_reload_conf()")
        stores = {"postgres": server.create_database("soak"), "sqlite": f"sqlite:///{folder}/soak.db"}
        seen = {name: Soak(name, url).run(seconds) for name, url in stores.items()}
    lost = sum(one["accepted"] - one["effects"] for one in seen.values())
    grown = sum(len(one["grown"]) for one in seen.values())
    if JSON:
        figures = {"run": "soak", "minutes": MINUTES, "rate": RATE, "lost": lost, "grown": grown, "stores": seen}
        report.write(JSON, figures, stores)
    return 0 if lost == grown == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
