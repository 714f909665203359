"""The guarantee report: what is truly in force, in the doctor and at start-up; who declares more does not start."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Inbox, Settings
from onceward.admin import guarantees
from onceward.admin.doctor import examine
from onceward.errors import ConfigurationError
from onceward.sinks.inbox import InboxSink
from tests.waiting import wait_until

if TYPE_CHECKING:
    from onceward import Message
    from tests.servers import PostgresServer


def nothing(message: Message, tx: Any) -> None:
    """A handler."""
    del message, tx


def levels(inbox: Inbox) -> dict[str, str]:
    """What is in force, by type."""
    return {one.type: one.level for one in guarantees.in_force(inbox.context, inbox.store)}


def test_what_is_in_force_is_said_per_handler(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onceward")
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.on("paid", guarantee="exactly-once")(nothing)
        inbox.add_sink("default", InboxSink(inbox, source="self"))
        assert levels(inbox) == {"paid": "exactly-once", "default": "at-least-once"}
        found = {finding.what.partition(":")[0]: finding.level for finding in examine(inbox)}
        assert found["nothing (paid for default)"] == "ok"
        worker = threading.Thread(target=inbox.run)
        worker.start()
        wait_until(lambda: "nothing of paid for default: exactly-once" in caplog.text, message="the report at start-up")
        inbox.stop()
        worker.join()


def test_a_store_in_memory_is_weaker_and_declaring_more_is_refused() -> None:
    with Inbox("sqlite://") as inbox:
        inbox.migrate()
        inbox.on("paid")(nothing)
        assert levels(inbox) == {"paid": "weaker"}
        inbox.on("charged", guarantee="exactly-once")(nothing)
        with pytest.raises(ConfigurationError, match="only 'weaker' is in force: the store is in memory"):
            inbox.run()
        assert any("exactly-once is declared" in finding.what for finding in examine(inbox))


def test_ids_that_are_forgotten_too_soon_are_weaker(sqlite_url: str) -> None:
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()
        inbox.retention.declare_source("shop", redelivers_for=timedelta(days=20))
        inbox.on("paid")(nothing)
        inbox.receive(source="shop", id="1", type="paid", data={})
    with Inbox(sqlite_url, settings=Settings(dedupe_retention=timedelta(days=8))) as inbox:
        inbox.on("paid", guarantee="at-least-once")(nothing)
        (one,) = guarantees.in_force(inbox.context, inbox.store)
        assert (one.level, one.is_broken) == ("weaker", True)
        assert "may redeliver for up to 20 days" in one.reasons[0]


def test_a_durable_server_is_exactly_once_and_a_careless_one_is_not(private_postgres: PostgresServer) -> None:
    private_postgres.create_database("shop")
    url = private_postgres.url("shop")
    with Inbox(url) as inbox:
        inbox.migrate()
        inbox.on("paid")(nothing)
        assert levels(inbox) == {"paid": "exactly-once"}
        with inbox.transaction() as tx:
            tx.execute("ALTER DATABASE shop SET synchronous_commit = off")
        assert levels(inbox) == {"paid": "weaker"}
