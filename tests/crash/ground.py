"""The database a crash test happens on: made fresh in a millisecond, and looked at without onceward's help.

The checks here are the invariants of the protocol, said in SQL: they hold at every moment at which nobody works,
so also right after a kill -9 and before any recovery.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from onceward import Inbox
from onceward.domain.identity import readable_id
from onceward.registry import OUTBOX
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.guard import PlainConnection
from onceward.stores.statements import WORDS, load
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

VICTIM = "victim"

_EFFECT = """
CREATE TABLE effect (
    n {number}, consumer text NOT NULL, source text NOT NULL, id text NOT NULL,
    account text, position integer, attempt integer NOT NULL, pid integer NOT NULL
)
"""
_NUMBER = {
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
    "postgres": "bigserial PRIMARY KEY",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
}
# Backwards, so that what refers to a table is emptied before it.
_TABLES = {
    "postgres": (
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY oid DESC"
    ),
    "mysql": (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = database() AND table_type = 'BASE TABLE'"
    ),
}
_KEPT = (
    *("onceward_migration", "onceward_catalog", "onceward_catalog_lock"),
    *("onceward_partition", "onceward_maintenance"),
)


def dialect_of(url: str) -> str:
    """Which words the database of a URL speaks."""
    return {"sqlite": "sqlite", "mysql": "mysql"}.get(url.partition(":")[0], "postgres")


class Ground:
    """A store with onceward's tables and one table of effects."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.dialect = dialect_of(url)
        self._file = Path(url.removeprefix("sqlite:///"))
        self._template = folder / "template.db"
        with Inbox(url) as inbox:
            inbox.migrate()
            with inbox.transaction() as tx:
                tx.execute(_EFFECT.format(number=_NUMBER[self.dialect]))
        self._server: Any = None
        if self.dialect == "sqlite":
            shutil.copy(self._file, self._template)
        else:
            self.reconnect()
        self._outputs = 0
        self.forgettable: set[str] = set()
        """Messages that may have taken effect and not be remembered, by "consumer/id"."""

    @property
    def victims_url(self) -> str:
        """The address for processes that may die, by which their connections can be told from others."""
        if self.dialect == "mysql":
            return self.url.replace("root@", f"{VICTIM}@")
        return self.url if self.dialect == "sqlite" else f"{self.url}?application_name={VICTIM}"

    def new_output(self) -> str:
        """A file for the next child to write to."""
        self._outputs += 1
        return str(self.folder / f"child-{self._outputs}")

    def lines(self, name: str) -> list[str]:
        """The lines of a file that processes have left: "published", "charged"."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def reset(self) -> None:
        """Empty every table."""
        self.forgettable = set()
        for name in ("published", "charged"):
            (self.folder / name).unlink(missing_ok=True)
        for name in ("archive", "blobs"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        if self.dialect == "sqlite":
            for suffix in ("-wal", "-shm"):
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)
            shutil.copy(self._template, self._file)
            return
        with self._connection() as connection:
            connection.execute("BEGIN")
            for (table,) in self.rows(_TABLES[self.dialect]):  # partitions of bodies come and go
                if table not in _KEPT:
                    connection.execute(f"DELETE FROM {table}")
            connection.execute("UPDATE onceward_catalog SET version = 1, last_crash_at = NULL")
            connection.execute("UPDATE onceward_maintenance SET due_at = 0")
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        if self._server is not None:
            yield self._server
            return
        # A new one each time: nobody has the file open when its last user was killed, as after a power cut.
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=30)
        try:
            yield connection
        finally:
            connection.close()

    def reconnect(self) -> None:
        """Open the connection to the server anew, after it was killed."""
        self.close()
        if self.dialect == "postgres":
            self._server = psycopg.connect(self.url, autocommit=True)
            return
        self._server = PlainConnection(**Address.of(self.url).arguments(), autocommit=True)
        self._server.execute(f"CREATE USER IF NOT EXISTS {VICTIM}")
        self._server.execute(f"GRANT ALL ON *.* TO {VICTIM}")

    def close(self) -> None:
        """Close the connection to the server."""
        if self._server is not None:
            self._server.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query answers."""
        with self._connection() as connection:
            return list(connection.execute(query).fetchall())

    def number(self, query: str) -> int:
        """What a query that answers one number answers."""
        return int(self.rows(query)[0][0])

    def change(self, command: str) -> None:
        """Run a command and commit it."""
        with self._connection() as connection:
            connection.execute(command)

    def let_leases_lapse(self) -> None:
        """Move every lease into the past, which is what the database's clock would do in time."""
        self.change("UPDATE onceward_worker SET alive_until = 0")

    def lapsed(self) -> list[int]:
        """The processes whose leases are over."""
        now = "(julianday('now') - 2440587.5) * 86400000000"
        if self.dialect == "postgres":
            now = "extract(epoch FROM clock_timestamp()) * 1000000"
        elif self.dialect == "mysql":
            now = WORDS["mysql"]["now"]
        return [pid for (pid,) in self.rows(f"SELECT pid FROM onceward_worker WHERE alive_until < {now}")]

    def await_silence(self) -> None:
        """Wait until the server has noticed that its victims are gone; in a file their locks go with them."""
        left = {
            "postgres": f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{VICTIM}'",
            "mysql": f"SELECT count(*) FROM information_schema.processlist WHERE user = '{VICTIM}'",
        }.get(self.dialect)
        if left is not None:
            wait_until(lambda: self.number(left) == 0, message="the connections of the dead to end")

    # What is there

    def statuses(self) -> dict[str, str]:
        """What became of each message, by "consumer/id"; of the outgoing ones, see `outgoing`."""
        return {name: status for name, status in self._statuses() if not name.startswith(OUTBOX)}

    def outgoing(self) -> dict[str, str]:
        """What became of each outgoing message, by its id."""
        return {name.removeprefix(f"{OUTBOX}/"): status for name, status in self._statuses() if name.startswith(OUTBOX)}

    def _statuses(self) -> Iterator[tuple[str, str]]:
        found = self.rows(
            "SELECT c.name, l.id, l.seq, q.state, l.type_hash FROM onceward_ledger l"
            " JOIN onceward_name c ON c.id = l.consumer LEFT JOIN onceward_queue q ON q.seq = l.seq ORDER BY l.seq"
        )
        runs = self._runs()
        actions = dict(self.rows("SELECT seq, action FROM onceward_audit WHERE action IN ('discard', 'skip')"))
        for consumer, stored, seq, state, type_hash in found:
            gone = (
                "imported"
                if not (type_hash or runs[seq])
                else {
                    (1, None): "done",
                    (1, "discard"): "done",  # a case of it was discarded, not itself
                    (1, "skip"): "skipped",
                    (0, "discard"): "discarded",
                }.get((runs[seq], actions.get(seq)), "lost or doubled")
            )
            yield f"{consumer}/{readable_id(bytes(stored))}", state or gone

    def _runs(self) -> Counter[int]:
        """How often each message was finished, by its number."""
        lists = [seqs for (seqs,) in self.rows("SELECT seqs FROM onceward_run")]
        return Counter(seq for seqs in lists for seq in (json.loads(seqs) if isinstance(seqs, str) else seqs))

    def effects(self) -> Counter[str]:
        """How often each message has taken effect, by "consumer/id"."""
        found = self.rows("SELECT consumer, id FROM effect WHERE consumer <> 'caller'")
        return Counter(f"{consumer}/{name}" for consumer, name in found)

    def positions(self) -> dict[str, list[int]]:
        """The positions of each account's messages, in the order in which they took effect."""
        found: dict[str, list[int]] = {}
        for account, position in self.rows("SELECT account, position FROM effect ORDER BY n"):
            if account is not None:
                found.setdefault(account, []).append(position)
        return found

    def charges(self, kind: str) -> Counter[str]:
        """How many attempts of a kind ("error", "crash") each message was charged with, by its id."""
        return Counter(
            name
            for (name,) in self.rows(
                "SELECT b.id FROM onceward_attempt a JOIN onceward_body b ON b.seq = a.seq"
                f" WHERE a.kind = '{kind}' AND a.charged"
            )
        )

    def lone_claims(self) -> int:
        """How many registered workers hold exactly one message."""
        return self.number(
            "SELECT count(*) FROM (SELECT worker FROM onceward_queue WHERE token IS NOT NULL"
            " GROUP BY worker HAVING count(*) = 1) AS lone"
        )

    # What must be so

    def check_at_rest(self) -> None:
        """What holds whenever nobody works: an effect exists exactly for what is done, and once (I2-I4, I16)."""
        effects = self.effects()
        for name, status in self.statuses().items():
            assert effects.pop(name, 0) == (status == "done"), f"{name} is {status}, effects: {self.effects()}"
        assert effects.keys() <= self.forgettable, f"effects without a message: {effects}"
        assert max(effects.values(), default=1) == 1, f"doubled: {effects}"
        published = set(self.lines("published"))
        outgoing = self.outgoing()
        assert published <= outgoing.keys(), "published, but never sent"
        assert {name for name, status in outgoing.items() if status == "done"} <= published, "not published"
        if self.dialect == "sqlite":
            assert self.rows("PRAGMA integrity_check") == [("ok",)]

    def check_settled(self) -> None:
        """What holds when everything has been recovered: nobody is out of reach, nothing is held (I9)."""
        self.check_at_rest()
        stuck = self.number(load(self.dialect, "onceward_")["illegal"][0])
        assert stuck == 0, f"{stuck} rows that nobody would ever move again"
        assert self.number("SELECT count(*) FROM onceward_queue WHERE token IS NOT NULL") == 0, "a claim is left"
        assert self.rows("SELECT * FROM onceward_worker") == [], "a worker is left"
