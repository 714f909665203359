"""A handler whose message an operator takes away is interrupted, as far as that is possible (R64)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from onceward import ConfigurationError, Message
from tests.contract.harness import QUICK, Kind, Shop


@pytest.mark.parametrize(("store", "kind"), [("postgres", "def"), ("postgres", "async"), ("sqlite", "async")])
def test_the_handler_of_an_interrupted_message_ends(store: str, kind: Kind, request: pytest.FixtureRequest) -> None:
    """A `def` handler at its next statement, an `async def` handler where it waits; then the lane goes on.

    A `def` handler on SQLite that has made a statement holds the one writer: who interrupts its message waits for it.
    """
    store_url: str = request.getfixturevalue(f"{store}_url")
    began, ended = threading.Event(), threading.Event()

    def endless(message: Message, tx: Any) -> None:  # noqa: ARG001 - what it is given
        try:
            while True:
                tx.execute("SELECT 1")
                began.set()
        finally:
            ended.set()

    async def waits(message: Message, tx: Any) -> None:  # noqa: ARG001 - what it is given
        try:
            began.set()
            await asyncio.sleep(3600)
        finally:
            ended.set()

    # The worker's other duties come next in an hour: this one has a turn of its own.
    with Shop(store_url, kind, settings=replace(QUICK, lease=timedelta(hours=3))) as shop:
        shop.inbox.on("endless")(endless if kind == "def" else waits)
        shop.handle("calm")
        with shop.running():
            seq = shop.receive("m1", "endless").seq
            shop.wait(began.is_set)
            assert shop.inbox.admin.interrupt(type="endless", reason="a test") == 1
            shop.wait(ended.is_set)
            shop.receive("m2", "calm")
            shop.wait(lambda: shop.status("m2") == "done")
        assert (shop.status(seq), shop.effects()) == ("dead", ["m2"])
        (attempt,) = shop.detail(seq).history
        assert attempt.error.startswith("Interrupted: by ")


def test_what_is_being_published_is_not_interrupted(sqlite_shop: Shop) -> None:
    """It cannot be taken back; the answer says what can be done."""
    enough, began = threading.Event(), threading.Event()

    class Sink:
        """It takes its time."""

        def publish(self, message: Message) -> None:  # noqa: ARG002 - what it is given
            """Wait until the test says so."""
            began.set()
            enough.wait(60)

    sqlite_shop.inbox.add_sink("slow", Sink())
    sqlite_shop.inbox.send("shipped", {"order": 1}, to="slow")
    (row,) = sqlite_shop.inbox.admin.messages(outgoing=True)
    with sqlite_shop.running():
        sqlite_shop.wait(began.is_set)
        with pytest.raises(ConfigurationError, match="pause its destination"):
            sqlite_shop.inbox.admin.interrupt(row.seq, reason="a test")
        enough.set()
        sqlite_shop.wait(lambda: sqlite_shop.status(row.seq) == "done")
