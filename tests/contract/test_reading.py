"""An operator sees what happens also while a handler has SQLite's only writer."""

from __future__ import annotations

import threading
from typing import Any

from onceward import Inbox, Message, Settings
from tests.contract.harness import Shop


def test_reports_do_not_wait_for_the_writer(sqlite_shop: Shop) -> None:
    started, enough = threading.Event(), threading.Event()

    def slow(message: Message, tx: Any) -> None:  # noqa: ARG001 - what it is given
        tx.execute("CREATE TABLE IF NOT EXISTS slow (id integer)")  # it has the writer from here on
        started.set()
        enough.wait(60)

    sqlite_shop.inbox.on("slow")(slow)
    with sqlite_shop.running():
        seq = sqlite_shop.receive("m1", "slow").seq
        sqlite_shop.wait(started.is_set)
        try:
            with Inbox(sqlite_shop.inbox.url, settings=Settings()) as elsewhere:
                admin = elsewhere.admin
                assert [one.seq for one in admin.running()] == [seq]
                assert [one.type for one in admin.handlers()] == ["slow"]
                assert admin.explain(seq) is not None
                assert [*admin.standing().concerns, *admin.pauses(), *admin.history(), *admin.search("none")] == []
        finally:
            enough.set()
        sqlite_shop.wait(lambda: sqlite_shop.status(seq) == "done")
