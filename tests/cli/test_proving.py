"""`onceward prove`: the handler of a stored message, proven where nothing of production can be touched."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from onceward import Inbox
from onceward.cli.app import application
from tests.servers import PostgresServer

PROGRAM = """
import os, socket, sqlite3, subprocess, uuid
from onceward import Inbox, execute

inbox = Inbox(os.environ["PROVEN_STORE"], service="shop")
PAY = "UPDATE orders SET paid = paid + 1 WHERE id = :order_id"


@inbox.on("careful", key="order_id")
def careful(message, tx):
    execute(tx, PAY, message.data)
    message.send("order.shipped", message.data)


@inbox.on("own")
def own(message, tx):
    with sqlite3.connect(os.environ["PROVEN_STORE"].removeprefix("sqlite:///")) as connection:
        connection.execute(PAY, message.data)


@inbox.on("swallows")
def swallows(message, tx):
    try:
        execute(tx, PAY, message.data)
        execute(tx, PAY.replace("orders", "orders"), message.data)
    except Exception:
        pass


@inbox.on("charges")
def charges(message, tx):
    charge = message.once("charge", lambda: open(os.environ["PROVEN_STORE"] + ".charged", "w"))
    execute(tx, "INSERT INTO journal (line) VALUES (:line)", {"line": charge})


@inbox.on("mails")
def mails(message, tx):
    execute(tx, PAY, message.data)
    socket.create_connection(("127.0.0.1", message.data["port"]))


@inbox.on("starts")
def starts(message, tx):
    subprocess.run(["touch", os.environ["PROVEN_STORE"].removeprefix("sqlite:///") + ".started"])


@inbox.on("clock")
def clock(message, tx):
    execute(tx, "INSERT INTO journal (line) VALUES (:line)", {"line": str(uuid.uuid4())})
"""

Prove = Callable[..., Result]


def prepared(url: str) -> Inbox:
    """A shop, with a message that waits in it."""
    inbox = Inbox(url, service="shop")
    inbox.migrate()
    with inbox.transaction() as tx:
        serial = "integer PRIMARY KEY" if inbox.store.dialect == "sqlite" else "serial PRIMARY KEY"
        tx.execute("CREATE TABLE orders (id integer PRIMARY KEY, paid integer NOT NULL)")
        tx.execute(f"CREATE TABLE journal (id {serial}, line text)")
        tx.execute("INSERT INTO orders VALUES (7, 0)")
    return inbox


def rows(inbox: Inbox) -> dict[str, list[Any]]:
    """All that a proof could change."""
    tables = ["orders", "journal"]
    tables += [
        f"onceward_{name}" for name in ("ledger", "queue", "body", "run", "attempt", "effect", "audit", "worker")
    ]
    with inbox.transaction() as tx:
        return {
            table: sorted(map(tuple, tx.execute(f"SELECT * FROM {table}").fetchall()), key=repr) for table in tables
        }


@pytest.fixture
def prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prove]:
    """Runs the command, with the program as it stands in the folder."""
    (tmp_path / "proven.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(url: str, *words: str) -> Result:
        monkeypatch.setenv("PROVEN_STORE", url)
        sys.modules.pop("proven", None)
        return CliRunner().invoke(application, ["prove", "proven:inbox", *words])

    yield run
    sys.modules.pop("proven", None)


def deliver(inbox: Inbox, kind: str, **data: Any) -> str:
    """A message that waits; its number."""
    return str(inbox.receive(source="test", id=kind, type=kind, data={"order_id": 7, **data}).seq)


def test_a_careful_handler_is_proven_on_a_copy(sqlite_url: str, prove: Prove) -> None:
    with prepared(sqlite_url) as inbox:
        seq = deliver(inbox, "careful")
        deliver(inbox, "swallows")  # waits beside it, and is none of this proof's
        before = rows(inbox)
        done = prove(sqlite_url, seq)
        assert done.exit_code == 0, done.output
        assert "exactly once in all 3" in done.output
        assert f"careful #{seq} (careful from test) for shop, on a copy of {sqlite_url}" in done.output
        assert rows(inbox) == before
        found = json.loads(prove(sqlite_url, seq, "--json").stdout)
        assert (found["ok"], found["causes"], found["failures"]) == (True, [], 0)
        assert found["cases"] > 30
        assert "UPDATE orders" in found["statements"][0]
        assert rows(inbox) == before


def test_what_goes_wrong_is_told_and_is_exit_code_1(sqlite_url: str, prove: Prove) -> None:
    with prepared(sqlite_url) as inbox:
        seq = deliver(inbox, "swallows")
        done = prove(sqlite_url, seq)
        assert done.exit_code == 1
        assert "LOST in" in done.output
        assert "the handler caught the error and returned" in done.output
        assert "('orders', 'added', (7, 2))" in done.output
        cause, *_ = json.loads(prove(sqlite_url, seq, "--json").stdout)["causes"]
        assert "lost" in cause["kinds"]
        assert cause["cases"][0]["mode"] == "store-first"


def test_a_connection_of_its_own_to_production_is_refused(sqlite_url: str, prove: Prove) -> None:
    with prepared(sqlite_url) as inbox:
        seq = deliver(inbox, "own")
        before = rows(inbox)
        done = prove(sqlite_url, seq)
        assert rows(inbox) == before
    assert done.exit_code == 1
    assert "the handler opened the SQLite database" in done.output
    assert "is refused here" in done.output


def test_nothing_outside_is_reached(sqlite_url: str, prove: Prove, tmp_path: Path) -> None:
    with prepared(sqlite_url) as inbox:
        mails, starts = deliver(inbox, "mails", port=9), deliver(inbox, "starts")
        assert "the handler connected to ('127.0.0.1', 9), which is refused here" in prove(sqlite_url, mails).output
        assert "the handler started 'touch', which is refused here" in prove(sqlite_url, starts).output
    assert not list(tmp_path.glob("*.started"))


def test_external_calls_are_answered_from_the_record(sqlite_url: str, prove: Prove, tmp_path: Path) -> None:
    with prepared(sqlite_url) as inbox:
        seq = deliver(inbox, "charges")
        unknown = prove(sqlite_url, seq)
        assert unknown.exit_code == 1
        assert "message.once('charge') has no result on record, and is not called here" in unknown.output
        assert "--result NAME=JSON" in unknown.output
        known = prove(sqlite_url, seq, "--result", 'charge="ch_1"')
        assert known.exit_code == 0, known.output
        assert prove(sqlite_url, seq, "--result", "charge=ch_1").exit_code == 2
    assert not list(tmp_path.glob("*.charged"))


def test_a_random_number_is_left_out_where_that_is_said(sqlite_url: str, prove: Prove) -> None:
    with prepared(sqlite_url) as inbox:
        seq = deliver(inbox, "clock")
        assert "--ignore TABLE.COLUMN" in prove(sqlite_url, seq).output
        assert prove(sqlite_url, seq, "--ignore", "journal.line").exit_code == 0
        wrong = prove(sqlite_url, seq, "--ignore", "diary")
        assert (wrong.exit_code, "there is no diary" in wrong.output) == (2, True)


def test_a_message_that_is_done_needs_an_older_database(sqlite_url: str, prove: Prove) -> None:
    with prepared(sqlite_url) as inbox:
        with inbox.transaction() as tx:
            tx.execute("CREATE UNIQUE INDEX once ON journal (line)")
        inbox.on("charges")(lambda _message, tx: tx.execute("INSERT INTO journal (line) VALUES ('ch_1')") and None)
        seq = deliver(inbox, "charges")
        inbox.drain()
    done = prove(sqlite_url, seq, "--result", 'charge="ch_1"')
    assert done.exit_code == 1
    assert "The message is done, so its effect is in the tables" in done.output


def test_what_cannot_be_proven_is_said(sqlite_url: str, prove: Prove) -> None:
    with prepared(sqlite_url) as inbox:
        seq = deliver(inbox, "careful")
        outgoing = inbox.send("order.shipped", {})
        (sent,) = inbox.admin.find_anywhere(outgoing)
        assert prove(sqlite_url, "4711").exit_code == 1
        assert "is outgoing" in prove(sqlite_url, str(sent)).output
        assert prove(sqlite_url).exit_code == 2
        preview = prove(sqlite_url, seq, "--preview")
        assert (preview.exit_code, "exactly once" in preview.output) == (0, False)


def test_a_server_must_have_been_said_to_be_disposable(postgres_url: str, prove: Prove) -> None:
    with prepared(postgres_url) as inbox:
        seq = deliver(inbox, "careful")
        before = rows(inbox)
        refused = prove(postgres_url, seq, "--yes")
        assert (refused.exit_code, "add --disposable" in refused.output) == (2, True)
        itself = prove(postgres_url, seq, "--yes", "--from", f"{postgres_url}?application_name=other")
        assert (itself.exit_code, "the program itself uses" in itself.output) == (2, True), itself.output
        unasked = prove(postgres_url, seq, "--disposable")
        assert (unasked.exit_code, "Not a terminal" in unasked.output) == (2, True)
        assert rows(inbox) == before
        done = prove(postgres_url, seq, "--disposable", "--yes")
        assert done.exit_code == 0, done.output
        assert rows(inbox) == before


def test_a_server_that_workers_use_is_refused(postgres_url: str, prove: Prove) -> None:
    with prepared(postgres_url) as inbox:
        seq = deliver(inbox, "careful")
        with inbox.transaction() as tx:
            tx.execute(
                "INSERT INTO onceward_worker SELECT * FROM json_populate_record(null::onceward_worker, %s)",
                [json.dumps(_worker(tx))],
            )
        refused = prove(postgres_url, seq, "--disposable", "--yes")
    assert (refused.exit_code, "is in use: 1 worker" in refused.output) == (2, True)


def _worker(tx: Any) -> dict[str, Any]:
    """A row of one that lives for an hour yet, whatever its columns are."""
    columns = tx.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'onceward_worker'"
    ).fetchall()
    of_type = {"bigint": 2**52, "integer": 1, "text": "test", "boolean": False}
    return {name: of_type[kind] for name, kind in columns if kind in of_type}


def test_a_message_of_production_is_proven_on_another_server_database(
    postgres_url: str, postgres_server: PostgresServer, prove: Prove
) -> None:
    """Its database is only read; the rows of the other one are as before, those that wait in it, too."""
    postgres_server.create_database("production")
    production = postgres_server.url("production")
    with prepared(production) as real, prepared(postgres_url) as disposable:
        seq = deliver(real, "careful")
        deliver(disposable, "own")
        before, others = rows(real), rows(disposable)
        done = prove(postgres_url, seq, "--yes", "--from", production)
        assert done.exit_code == 0, done.output
        assert rows(real) == before
        assert rows(disposable) == others
    postgres_server.drop_database("production")
