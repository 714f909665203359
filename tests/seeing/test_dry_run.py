"""`try`: everything a handler does is shown, and nothing of it stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from onceward import Inbox, Message
from onceward.admin.dry_run import StoppedHere
from onceward.cli.app import application
from onceward.errors import ConfigurationError
from tests.seeing.conftest import balances, deliver, pay, sign


def everything(inbox: Inbox) -> dict[str, list[Any]]:
    """Every row of every table that a message could leave a trace in."""
    tables = ("ledger", "queue", "body", "run", "result", "attempt", "effect", "audit")
    with inbox.transaction() as tx:
        found = {name: tx.execute(f"SELECT * FROM onceward_{name}").fetchall() for name in tables}
        return found | {"account": sorted(tx.execute("SELECT * FROM account").fetchall())}


@pytest.mark.parametrize("state", ["due", "done", "dead"])
def test_outcome_statements_and_rows_are_shown_and_nothing_stays(inbox: Inbox, state: str) -> None:
    pay(inbox)
    seq = deliver(inbox, 1, amount=-1 if state == "dead" else 5)
    if state != "due":
        inbox.drain()
    before = everything(inbox)
    report = inbox.admin.dry_run(seq)
    assert everything(inbox) == before
    if state == "dead":
        assert (report.ended, report.decision.partition(":")[0]) == ("raised", "dead")
        assert "is negative" in report.error
        assert "in paid" in report.traceback
        return
    balance = 100 if state == "due" else 105
    assert (report.ended, report.result) == ("returned", {"booked": 5})
    (change,) = report.changes
    assert (change.table, change.kind) == ("account", "update")
    assert (change.before, change.after) == ({"id": "a", "balance": balance}, {"id": "a", "balance": balance + 5})
    (statement,) = report.statements
    assert "UPDATE account" in statement.sql
    if inbox.store.dialect == "mysql":  # whose drivers write values into the text
        assert statement.sql.endswith("SET balance = balance + 5 WHERE id = 'a'")
    else:
        assert "[5, 'a']" in statement.parameters
    assert [(one.type, one.to, json.loads(one.body)) for one in report.sent] == [("booked", "default", {"amount": 5})]
    assert inbox.admin.stats().outbox_unsent == (0 if state == "due" else 1)


def test_inserts_and_deletes_and_savepoints_are_seen(inbox: Inbox) -> None:
    mark = sign(inbox)

    @inbox.on("moved")
    def moved(message: Message, tx: Any) -> None:
        tx.execute("SAVEPOINT inner_part")
        tx.execute("DELETE FROM account WHERE id = 'b'")
        tx.execute("RELEASE SAVEPOINT inner_part")
        tx.execute(f"INSERT INTO account (id, balance) VALUES ({mark}, 1)", [message.id])

    report = inbox.admin.dry_run(deliver(inbox, 1, kind="moved"))
    found = {change.kind: change for change in report.changes}
    assert found.keys() == {"insert", "delete"}
    assert (found["delete"].before, found["delete"].after) == ({"id": "b", "balance": 7}, None)
    assert (found["insert"].before, found["insert"].after) == (None, {"id": "evt-1", "balance": 1})
    assert balances(inbox) == {"a": 100, "b": 7}


def test_an_async_handler_is_tried_too(inbox: Inbox) -> None:
    @inbox.on("moved")
    async def moved(message: Message, tx: Any) -> str:
        await tx.execute("UPDATE account SET balance = 0 WHERE id = 'a'")
        return message.id

    report = inbox.admin.dry_run(deliver(inbox, 1, kind="moved"))
    assert (report.ended, report.result) == ("returned", "evt-1")
    assert [change.after for change in report.changes] == [{"id": "a", "balance": 0}]
    assert balances(inbox)["a"] == 100


def test_external_calls_are_stopped_and_shown(inbox: Inbox) -> None:
    made: list[str] = []

    def call(name: str) -> dict[str, int]:
        made.append(name)
        return {"id": len(made)}

    @inbox.on("charged")
    def charged(message: Message, tx: Any) -> Any:
        del tx
        try:
            first = message.once("first", lambda: call("first"))
        except Exception:  # noqa: BLE001 - a careless handler; the stop must get past it
            return "swallowed"
        message.once("second", lambda: call("second"))
        return first

    seq = deliver(inbox, 1, kind="charged")
    report = inbox.admin.dry_run(seq)
    assert made == []
    assert (report.ended, [(call.name, call.recorded) for call in report.calls]) == ("stopped", [("first", False)])
    assert "stopped at the external call 'first'" in report.decision
    inbox.drain()
    assert made == ["first", "second"]
    again = inbox.admin.dry_run(seq)
    assert (again.ended, again.result) == ("returned", {"id": 1})  # what is on record is given, as to a retry
    assert made == ["first", "second"]
    assert all(call.recorded for call in again.calls)
    assert not issubclass(StoppedHere, Exception)


def test_what_cannot_be_tried_is_refused_with_the_reason(inbox: Inbox) -> None:
    pay(inbox)
    deliver(inbox, 1)
    inbox.drain()
    (sent,) = inbox.admin.messages(outgoing=True)
    with pytest.raises(ConfigurationError, match="publishing it cannot be rolled back"):
        inbox.admin.dry_run(sent.seq)
    with pytest.raises(LookupError, match="no message with number 999"):
        inbox.admin.dry_run(999)


def test_a_database_error_of_the_handler_is_its_outcome(inbox: Inbox) -> None:
    @inbox.on("broken")
    def broken(message: Message, tx: Any) -> None:
        del message
        tx.execute("UPDATE account SET balance = 1")
        tx.execute("SELECT * FROM no_such_table")

    report = inbox.admin.dry_run(deliver(inbox, 1, kind="broken"))
    assert report.ended == "raised"
    assert "no_such_table" in report.error
    assert len(report.statements) == 2
    assert balances(inbox) == {"a": 100, "b": 7}
    assert "tried again" in report.decision


def test_the_command_needs_a_program(inbox: Inbox) -> None:
    result = CliRunner().invoke(application, ["try", "--store", inbox.url, "1"])
    assert result.exit_code == 2
    assert "name the program" in result.stderr
