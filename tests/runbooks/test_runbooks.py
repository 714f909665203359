"""The runbooks are true: each is followed here, from what somebody sees to the end of the trouble."""

from __future__ import annotations

import re
import shlex
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from onceward import Inbox, Message, Reject, Settings
from onceward.admin.concerns import HELP
from onceward.cli.app import COMMANDS, application
from onceward.message import Arguments
from onceward.observability.prometheus import exposition
from tests.runbooks.operator import SOURCE, Operator, answer, command
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.servers import PostgresServer

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "runbooks").glob("*.md"))


def test_the_database_is_down(private_postgres: PostgresServer, tmp_path: Path) -> None:
    private_postgres.create_database("shop")
    settings = Settings(lease=timedelta(seconds=2), poll=timedelta(milliseconds=100))
    ran: list[str] = []
    with Inbox(private_postgres.url("shop"), service="shop", spool=tmp_path / "spool", settings=settings) as inbox:
        inbox.migrate()
        inbox.on("paid")(lambda message, tx: ran.append(message.id))  # noqa: ARG005 - a handler's signature
        worker = threading.Thread(target=inbox.run)
        worker.start()
        operator = Operator(inbox)
        operator.receive(1)
        # What has run and is not committed when the server stops runs again.
        wait_until(lambda: operator.status()["done"] == 1, message="the first message")
        private_postgres.stop()
        assert command("status", *operator.store).exit_code == 3
        assert re.search(rb'onceward_up{service="shop"} 0.0', exposition(inbox))
        receipt = inbox.receive(source=SOURCE, id="evt_2", type="paid", data={})
        assert receipt.status == "spooled"
        private_postgres.start()
        wait_until(lambda: ran == ["evt_1", "evt_2"], timeout=60, message="the worker and the spool, by themselves")
        wait_until(lambda: not inbox.retention.spooled, message="the spool to forget what is stored")
        inbox.stop()
        worker.join()


def test_a_poison_message(operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = tmp_path / "fixed"

    @operator.inbox.on("paid", key="order")
    def paid(message: Message, tx: Any) -> None:
        del tx
        if not fixed.exists():
            raise Reject(f"order {message.data['order']} has no amount")

    seqs = [operator.receive(number, order=number) for number in range(3)]
    behind = operator.receive("next", order=0)
    operator.inbox.drain()
    operator.sees("dead")
    assert "order 2 has no amount" in answer("list", *operator.store, "--status", "dead")
    assert str(behind) in answer("list", *operator.store, "--status", "waiting")
    told = answer("explain", *operator.store, str(seqs[0]), "--tracebacks")
    (found,) = re.findall(r"--error (\w+)", told)
    monkeypatch.setattr("onceward.cli.target.load", lambda _: operator.inbox)
    monkeypatch.setattr(operator.inbox, "close", lambda: None)
    assert command("try", "shop:inbox", str(seqs[0])).exit_code == 1
    fixed.touch()  # the new code
    assert "all of it was rolled back" in answer("try", "shop:inbox", str(seqs[0]))
    monkeypatch.undo()
    answer("redrive", *operator.store, str(seqs[0]), "--reason", "fixed in 1.4.2")
    answer("redrive", *operator.store, "--error", found, "--reason", "fixed in 1.4.2", "--yes")
    operator.inbox.drain()
    assert (operator.status()["dead"], operator.status()["waiting"], operator.status()["done"]) == (0, 0, 4)
    operator.sees("dead", "over")


def test_a_duplicate_storm(operator: Operator) -> None:
    ran: list[str] = []

    @operator.inbox.on("paid")
    def paid(message: Message, tx: Any) -> str:
        del tx
        ran.append(message.id)
        return "booked"

    operator.receive(1, order=1)
    operator.inbox.drain()
    for _ in range(200):
        assert operator.inbox.receive(source=SOURCE, id="evt_1", type="paid", data={"order": 1}).result == "booked"
    assert operator.status()["duplicates"] == 200
    assert ran == ["evt_1"]
    assert "latest of 200 copies suppressed" in answer("explain", *operator.store, "--source", SOURCE, "--id", "evt_1")
    (source,) = operator.inbox.admin.sources()
    assert (source.name, source.duplicates) == (SOURCE, 200)
    operator.inbox.retention.declare_source(SOURCE, redelivers_for=timedelta(days=3))
    operator.receive(2, order=2)
    assert "stripe may redeliver for up to 3 days" in answer("doctor", *operator.store)


@pytest.mark.parametrize("resolution", ["keep-first", "accept-as-new", "discard"])
def test_an_id_reused_with_another_payload(operator: Operator, resolution: str) -> None:
    amounts: list[int] = []
    operator.inbox.on("paid")(lambda message, tx: amounts.append(message.data["amount"]))  # noqa: ARG005 - its signature
    operator.receive(1, amount=10)
    assert operator.inbox.receive(source=SOURCE, id="evt_1", type="paid", data={"amount": 99}).status == "mismatch"
    operator.inbox.drain()
    assert amounts == [10]
    operator.sees("mismatch")
    shown = answer("quarantine", "list", *operator.store)
    assert re.search(r"amount +10 +99", shown)
    answer("resolve", *operator.store, "1", resolution, "--reason", "ticket 81")
    operator.inbox.drain()
    assert amounts == ([10, 99] if resolution == "accept-as-new" else [10])
    again = operator.inbox.receive(source=SOURCE, id="evt_1", type="paid", data={"amount": 99}).status
    assert again == ("mismatch" if resolution == "discard" else "duplicate")
    assert operator.status()["quarantined"] == (1 if resolution == "discard" else 0)


def test_a_type_has_a_new_name(operator: Operator) -> None:
    operator.inbox.on("invoice.paid")(lambda message, tx: None)  # noqa: ARG005 - its signature
    operator.inbox.receive(source=SOURCE, id="evt_1", type="paid", data={})
    redelivered: Arguments = {"source": SOURCE, "id": "evt_1", "type": "invoice.paid", "data": {}}
    assert operator.inbox.receive(**redelivered).status == "mismatch"
    operator.sees("mismatch")
    assert "invoice.paid version 1, first paid version 1" in answer("quarantine", "list", *operator.store)
    decide = ("--source", SOURCE, "--type", "invoice.paid", "--reason", "renamed on 12 May")
    assert "1 mismatch decided" in answer("quarantine", "keep-first", *operator.store, *decide)
    assert operator.inbox.receive(**redelivered).status == "duplicate"
    assert operator.status()["quarantined"] == 0


def test_events_out_of_order(operator: Operator) -> None:
    applied: list[int] = []

    @operator.inbox.on("moved", key="order", sequence="number", gap=timedelta(milliseconds=1))
    def moved(message: Message, tx: Any) -> None:
        del tx
        applied.append(message.data["number"])

    first = operator.receive(1, "moved", order=7, number=1)
    third = operator.receive(3, "moved", order=7, number=3)
    operator.inbox.drain()
    wait_until(lambda: operator.inbox.drain() or operator.status()["dead"], message="the end of the wait for number 2")
    assert applied == [1]
    assert "number 2" in answer("explain", *operator.store, str(third))
    operator.receive(2, "moved", order=7, number=2)  # the source was asked for it
    operator.inbox.drain()
    answer("redrive", *operator.store, str(third), "--reason", "the number before it came")
    operator.inbox.drain()
    assert applied == [1, 2, 3]
    late = operator.inbox.receive(source=SOURCE, id="late", type="moved", data={"order": 7, "number": 2}).seq
    operator.inbox.drain()
    assert applied == [1, 2, 3]
    assert (late, "skip") in [(line.seq, line.action) for line in operator.inbox.admin.audit()]
    assert first < third < late


def _options(words: list[str]) -> set[str]:
    """The options that a command knows."""
    found: click.Command = application
    context = click.Context(application)
    for word in words:
        if isinstance(found, click.Group):
            found = found.get_command(context, word) or found
    return {name for parameter in found.params for name in parameter.opts}


@pytest.mark.parametrize("page", [*PAGES, DOCS / "operations.md"], ids=lambda page: page.stem)
def test_every_command_and_picture_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    commands = re.findall(r"(?:^\s*\$ |`)(onceward [^`\n#]+)", text, re.MULTILINE)
    assert commands
    for line in commands:
        words = shlex.split(line.replace("[", "").replace("]", ""))[1:]
        assert words[0] in COMMANDS, line
        assert {word for word in words if word.startswith("--")} <= _options(words), line
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


def test_there_is_a_page_for_each_trouble() -> None:
    assert {page.stem for page in PAGES} == {
        "database-down",
        "duplicate-storm",
        "out-of-order",
        *(one.runbook for one in HELP.values()),
    }
    index = (DOCS / "operations.md").read_text()
    assert all(f"runbooks/{page.name}" in index for page in PAGES)
