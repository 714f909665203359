"""A shop of the shipped suite on SQLite and PostgreSQL, with a look into the database itself.

Invariant: when a shop is closed, its database is checked: whatever a test did, no message was lost, doubled or left out
of reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from onceward import Inbox
from onceward.stores.statements import WORDS
from onceward.testing.store_suite.place import Note
from onceward.testing.store_suite.shop import (
    LATER,
    QUICK,
    SOURCE,
    TYPE,
    Kind,
    arguments,
    in_threads,
)
from onceward.testing.store_suite.shop import Shop as SuiteShop
from tests.contract.behaviour import statement
from tests.contract.health import assert_healthy, assert_nobody_left
from tests.contract.window import Window
from tests.waiting import wait_until

__all__ = ["LATER", "QUICK", "SOURCE", "TYPE", "Kind", "Shop", "SqlPlace", "arguments", "in_threads"]


_NUMBER = {
    "sqlite": "",
    "postgres": ", n bigserial",
    "mysql": ", n bigint AUTO_INCREMENT PRIMARY KEY",
}
"""What numbers the effects in the order of their writing."""


def dialect(url: str) -> str:
    """Which kind of database a URL leads to."""
    scheme = url.partition(":")[0]
    return {"sqlite": "sqlite", "mysql": "mysql", "mariadb": "mysql"}.get(scheme, "postgres")


class SqlPlace:
    """A database by its URL; effects are rows of a table."""

    def __init__(self, url: str) -> None:
        self.url, self.window = url, Window(url)
        self.mark = "?" if url.startswith("sqlite") else "%s"

    def store(self) -> str:
        """Its URL."""
        return self.url

    def prepare(self, _inbox: Inbox) -> None:
        """Make the table."""
        columns = f"message_id text, note text{_NUMBER[dialect(self.url)]}"
        by_bytes = WORDS["mysql"]["table"] if dialect(self.url) == "mysql" else ""
        self.window.sql(f"CREATE TABLE IF NOT EXISTS effects ({columns}) {by_bytes}")

    def write(self, tx: Any, note: Note) -> Awaitable[Any] | None:
        """Add a row."""
        done: Awaitable[Any] | None = tx.execute(
            *statement("INSERT INTO effects (message_id, note) VALUES (%s, %s)", note, self.mark)
        )
        return done

    def effects(self, _inbox: Inbox) -> list[Note]:
        """The rows."""
        number = "rowid" if self.mark == "?" else "n"
        rows = self.window.sql(f"SELECT message_id, note FROM effects ORDER BY {number}")
        return [(message_id, note) for message_id, note in rows]


class Shop(SuiteShop):
    """A shop with its database at hand."""

    place: SqlPlace

    def __init__(  # noqa: PLR0913 - what shops on one database share, and what each chooses
        self,
        url: str | SqlPlace,
        kind: Kind,
        *,
        runner: asyncio.Runner | None = None,
        first: bool = True,
        migrate: bool | None = None,
        pooled: bool = False,
        **options: Any,
    ) -> None:
        place = SqlPlace(url) if isinstance(url, str) else url
        self.url, self._pooled = place.url, pooled
        self.dialect = dialect(self.url)
        super().__init__(place, kind, runner=runner, first=first if migrate is None else migrate, **options)
        self.prefix = self.inbox.context.prefix

    def close(self) -> None:
        """Close every inbox of this shop, and the look into its database."""
        super().close()
        if self._own_runner:
            self.place.window.close()

    def check(self) -> None:
        """Also in the rows themselves."""
        assert_healthy(self.inbox)

    def check_closed(self) -> None:
        """Also no connection is left."""
        assert_nobody_left(self.inbox, self._before, pooled=self._pooled)

    def hurry(self) -> int:
        """Make every retry due now, whatever its handler said; answers how many there were."""
        waiting = self.count("queue", "state = 'retry'")
        self.sql(f"UPDATE {self.prefix}queue SET due_at = 0 WHERE state = 'retry'")
        return waiting

    def finish(self) -> None:
        """Drain, again and again, until no message is backing off."""
        self.drain()
        for _ in range(20):
            if not self.hurry():
                return
            self.drain()
        raise AssertionError("messages back off for ever")

    def sql(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own, past the inbox."""
        return self.place.window.sql(text, *params)

    def count(self, table: str, where: str = "1 = 1") -> int:
        """How many rows one of onceward's tables has."""
        return int(self.sql(f"SELECT count(*) FROM {self.prefix}{table} WHERE {where}")[0][0])

    def waiting_for_locks(self) -> int:
        """How many connections to a database of PostgreSQL wait for a lock."""
        waiting = "wait_event_type = 'Lock' AND datname = current_database()"
        return int(self.sql(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}")[0][0])

    def end_backend(self, pid: int) -> None:
        """End a connection of PostgreSQL from outside, and wait until it is gone (13 cannot wait by itself)."""
        assert self.sql("SELECT pg_terminate_backend(%s)", pid) == [(True,)]
        wait_until(lambda: not self.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))
