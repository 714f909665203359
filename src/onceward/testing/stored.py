"""A proof on a message that came: on a copy of its database, or on one whose rows may be put back.

Invariant: production is only read. A SQLite file is copied; on a server the program's own database must have been said
to be disposable, and no worker may use it. Nothing outside is touched: calls through `message.once` get their results
on record, connections and programs are refused.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from onceward.admin.messages import MessageDetail
from onceward.domain.text import count
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.registry import OUTBOX
from onceward.stores.migrate import masked
from onceward.testing.cases import INLINE, STORE_FIRST
from onceward.testing.everything import Everything
from onceward.testing.harness import Subject
from onceward.testing.proof import handler_of, report_on
from onceward.testing.report import Report
from onceward.testing.restore import keeper_of

_OF_MESSAGES = (
    *("attempt", "effect", "result", "run", "queue", "body", "ledger", "progress", "duplicate"),
    *("first_seen", "quarantine", "worker"),
)
"""The tables that are empty where no message has come yet."""
_WHICH = {
    "postgres": "SELECT current_database(), pg_postmaster_start_time()::text",
    "mysql": "SELECT database(), @@hostname, @@port, @@datadir",
}


def stored_message(inbox: Inbox, seq: int) -> MessageDetail:
    """The message with a number; raises `LookupError` where there is none that can be proven."""
    detail = inbox.admin.message(seq)
    if detail is None:
        raise LookupError(f"there is no message with number {seq}")
    if detail.consumer == OUTBOX:
        raise LookupError(f"message {seq} is outgoing: it has no handler. Prove the message that sent it")
    if detail.body is None or detail.type is None:
        raise LookupError(f"the body of message {seq} is not kept any more, so no handler can be proven on it")
    return detail


@contextmanager
def on_copy(inbox: Inbox) -> Iterator[None]:
    """Use a copy of a SQLite file while the block runs; the file itself is only read."""
    store: Any = inbox.store
    if store.dialect != "sqlite" or inbox.url in ("sqlite://", "sqlite:///:memory:"):
        raise ConfigurationError(f"{inbox.url} is no SQLite file that could be copied")
    url, path = store.url, store.path
    with tempfile.TemporaryDirectory(prefix="onceward-prove-") as folder:
        copy = Path(folder) / path.name
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(copy)) as target,
        ):
            original.backup(target)
        store.close()
        store.url, store.path = f"sqlite:///{copy}", copy
        try:
            yield
        finally:
            store.close()
            store.url, store.path = url, path


def check_disposable(inbox: Inbox, original: Inbox | None = None) -> None:
    """Refuse a database that workers use, or that the message comes from: its rows are put back after each case."""
    if original is not None and _which(inbox) == _which(original):
        raise ConfigurationError("--from is the database that the program itself uses: configure it for one of tests")
    working = sum(1 for worker in inbox.admin.workers() if worker.lease_seconds > 0)
    if working:
        raise ConfigurationError(
            f"{masked(inbox.url)} is in use: {count(working, 'worker')}. Stop what runs there, or prove on another "
            "database; the proof puts its rows back after each case"
        )


def _which(inbox: Inbox) -> tuple[Any, ...]:
    """What tells a database from all others, however it is addressed."""
    if inbox.store.dialect not in _WHICH:
        return (inbox.url,)
    with inbox.transaction() as connection:
        found = connection.execute(_WHICH[inbox.store.dialect]).fetchone()
    return tuple(found)


def prove_stored(
    inbox: Inbox, detail: MessageDetail, *, results: Mapping[str, Any] | None = None, ignore: Collection[str] = ()
) -> Report:
    """Prove the handler of a message on the database that the inbox has now, whose rows are put back afterwards.

    The effect is every changed row of every table, but for what `ignore` names: a table, or TABLE.COLUMN. `results`
    are those of calls through `message.once`, beside the ones on record.
    """
    message = _arguments(detail)
    handler = handler_of(inbox, message, detail.consumer)
    with inbox.transaction() as connection:
        keeper = keeper_of(inbox.store, connection)
        check = Everything(connection, inbox.store.dialect, inbox.context.prefix, ignore)
    try:
        with inbox.transaction() as connection:  # as if no message had come: what waits here would run, too
            for table in _OF_MESSAGES:
                connection.execute(f"DELETE FROM {inbox.context.prefix}{table}")
        recorded = {effect.name: effect.result for effect in detail.effects if effect.done}
        subject = Subject(
            inbox=inbox,
            handler=handler,
            message=message,
            others=[],
            check=check,
            recorded={**recorded, **(results or {})},
        )
        return report_on(subject, (STORE_FIRST, INLINE))
    finally:
        with inbox.transaction() as connection:
            keeper.restore(connection)


def _arguments(detail: MessageDetail) -> dict[str, Any]:
    """What `receive` was given."""
    return {
        "source": detail.source,
        "id": detail.id,
        "type": detail.type,
        "version": detail.version or 1,
        "key": detail.key,
        "headers": dict(detail.headers) or None,
        "body": detail.body,
    }
