"""What must hold in the database after every test, whatever it did (hazards 2.2)."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg

from onceward import Inbox
from onceward.runtime.runner import perform
from onceward.testing.store_suite.shop import threads
from tests.waiting import wait_until

_DOUBLED = "SELECT message_id, note, count(*) FROM effects GROUP BY message_id, note HAVING count(*) > 1"
# An imported id has no type: it was handled before onceward was there.
_FINISHED = "SELECT seq FROM {0}ledger WHERE type_hash <> 0 AND seq NOT IN (SELECT seq FROM {0}queue)"
_DISCARDED = "SELECT seq FROM {0}audit WHERE action = 'discard'"
_RUNS = "SELECT seqs FROM {0}run"
_RESULTS = "SELECT seq FROM {0}result"
_STRAY_BODIES = "SELECT seq FROM {0}body WHERE seq NOT IN (SELECT seq FROM {0}ledger)"
_BODILESS = "SELECT q.seq FROM {0}queue q LEFT JOIN {0}body b ON b.seq = q.seq WHERE b.body IS NULL"
_CLAIMED = "SELECT seq, worker, token FROM {0}queue WHERE token IS NOT NULL"
_OPEN = """SELECT pid, query FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'onceward' AND state LIKE 'idle in transaction%'"""
_CONNECTED = """SELECT pid, state, query FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'onceward' AND pid <> pg_backend_pid()"""


def assert_healthy(inbox: Inbox) -> None:
    """No message lost, doubled, half done or out of reach, and nobody at work."""
    prefix = inbox.context.prefix
    with inbox.transaction() as connection:

        def rows(statement: str) -> list[Any]:
            return [tuple(row) for row in connection.execute(statement.format(prefix)).fetchall()]

        def seqs(statement: str) -> set[int]:
            return {row[0] for row in rows(statement)}

        assert rows(_DOUBLED) == [], "I2: a message took effect twice"
        ran = [seq for (group,) in rows(_RUNS) for seq in (json.loads(group) if isinstance(group, str) else group)]
        assert len(ran) == len(set(ran)), "I2: a message was finished twice"
        finished, discarded = seqs(_FINISHED), seqs(_DISCARDED)
        assert finished <= set(ran) | discarded, "I1: a message left the queue without a run or an operator"
        assert set(ran) <= finished, "I3: a message counts as run and is still in the queue"
        assert seqs(_RESULTS) <= set(ran), "I3: a message that was not finished has a result"
        assert rows(_STRAY_BODIES) == [], "a body without its ledger row"
        assert rows(_BODILESS) == [], "I1: an unfinished message has lost its body"
        assert rows(_CLAIMED) == [], "I9: a claim without a worker at work"
        open_ones = rows(_OPEN) if inbox.store.dialect == "postgres" else []
    assert perform(inbox.store, inbox.context.moves.reports.unreachable) == 0, (
        "I9: a row that nobody would ever move again"
    )
    if open_ones:
        assert_connections_idle(inbox)


def assert_connections_idle(inbox: Inbox) -> None:
    """I15: no connection is left inside a transaction; a server needs a moment to see that one was dropped."""
    with psycopg.connect(inbox.url, autocommit=True) as connection:
        wait_until(lambda: not connection.execute(_OPEN).fetchall(), message="no transaction left open")


def assert_nobody_left(inbox: Inbox, before: set[threading.Thread], *, pooled: bool = False) -> None:
    """After closing: no worker row, no new thread, no connection (but those a pooler in between keeps for itself)."""
    with inbox.transaction() as connection:
        workers = list(connection.execute(f"SELECT process, host FROM {inbox.context.prefix}worker").fetchall())
    assert workers == [], "a worker did not deregister"
    wait_until(lambda: threads() <= before, message="the end of every thread of onceward")
    if inbox.store.dialect == "postgres" and not pooled:
        with psycopg.connect(inbox.url, autocommit=True) as connection:
            wait_until(lambda: not connection.execute(_CONNECTED).fetchall(), message="every connection closed")
