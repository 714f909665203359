"""What goes wrong is said with what, why and what next (D51)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from onceward import ConfigurationError, Inbox, Message, RetryPolicy, StoreUnavailable
from tests.waiting import wait_until

LATER = RetryPolicy(first=timedelta(seconds=30), jitter=0)


@pytest.fixture
def inbox(sqlite_url: str) -> Iterator[Inbox]:
    """An inbox whose only handler cannot find the order."""
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()

        @inbox.on("order.paid", retry=LATER)
        def pay(message: Message, tx: Any) -> None:
            tx.execute("SELECT 1")
            raise LookupError(f"no order for {message.data['email']}")

        @inbox.on("order.cancelled", key=lambda message: message.data["order"], retry=LATER)
        def cancel(message: Message, tx: Any) -> None:
            del message, tx

        yield inbox


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if " failed: " in record.getMessage()]


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_failure_names_the_message_and_the_next_command(
    inbox: Inbox, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """D51: and not the error's text, which may quote the message."""
    message: Any = {"source": "shop", "id": "evt_1", "type": "order.paid", "data": {"email": "ann@example.com"}}
    receipt = inbox.process(**message) if how == "process" else inbox.receive(**message)
    inbox.drain()
    (told,) = failures(caplog)
    which, details = f"order.paid #{receipt.seq} (evt_1 from shop)", f"onceward explain MODULE:ATTR {receipt.seq}"
    assert told == f"{which} failed: LookupError, attempt 1 of 20, next try in 30 s. Details: {details}"


def test_the_command_has_the_name_that_the_program_gives_the_inbox(
    inbox: Inbox, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where workers run without onceward's command line: it can be copied and run."""
    module = ModuleType("shop_of_this_test")
    vars(module)["inbox"] = inbox
    monkeypatch.setitem(sys.modules, module.__name__, module)
    receipt = inbox.receive(source="shop", id="evt_1", type="order.paid", data={"email": "ann@example.com"})
    worker = threading.Thread(target=inbox.run)
    worker.start()
    try:
        wait_until(lambda: failures(caplog))
    finally:
        inbox.stop()
        worker.join()
    assert failures(caplog)[0].endswith(f"Details: onceward explain shop_of_this_test:inbox {receipt.seq}")


def test_in_development_the_text_is_told_too(
    inbox: Inbox, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D51: where there is nothing to hide."""
    monkeypatch.setenv("ONCEWARD_ENV", "development")
    inbox.process(source="shop", id="evt_1", type="order.paid", data={"email": "ann@example.com"})
    assert "failed: LookupError: no order for ann@example.com, attempt 1" in failures(caplog)[0]


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_key_function_that_raises_is_named(inbox: Inbox, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """D51: instead of calling the message unreadable."""
    message: Any = {"source": "shop", "id": "evt_2", "type": "order.cancelled", "data": {}}
    receipt = inbox.process(**message) if how == "process" else inbox.receive(**message)
    inbox.drain()
    assert failures(caplog)[0].startswith(f"order.cancelled #{receipt.seq} (evt_2 from shop) failed: KeyError, attempt")
    detail = inbox.admin.message(receipt.seq)
    assert detail is not None
    assert detail.history[0].error.startswith("KeyError: 'order'; raised by the key function of ")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """D51: with the command that makes its folder; and where something else is in the way, what it needs."""
    with Inbox(f"sqlite:///{tmp_path}/data/shop.db") as inbox, pytest.raises(StoreUnavailable) as missing:
        inbox.migrate()
    folder = tmp_path / "data"
    assert str(missing.value) == (
        f"{folder}/shop.db cannot be opened: its folder does not exist. Run: mkdir -p {folder}"
    )
    with (
        Inbox(f"sqlite:///{tmp_path}") as inbox,
        pytest.raises(StoreUnavailable, match=f"^{tmp_path} cannot be opened"),
    ):
        inbox.migrate()


@pytest.mark.parametrize("start", ["run", "drain"])
def test_async_handlers_without_aiosqlite_are_one_sentence(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """D51: raised before anything runs, as it is."""
    monkeypatch.setitem(sys.modules, "aiosqlite", None)
    with Inbox(sqlite_url) as inbox:
        inbox.migrate()

        @inbox.on("order.paid")
        async def pay(message: Message, tx: Any) -> None:
            del message, tx

        with pytest.raises(ConfigurationError, match=r"need aiosqlite: pip install 'onceward\[sqlite\]'$"):
            getattr(inbox, start)()
