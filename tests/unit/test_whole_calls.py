"""A call in a caller's transaction that fails leaves nothing there, whatever the caller commits afterwards (R41)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox, Message
from onceward.errors import StoreConflict, StoreError, StoreUnavailable
from onceward.flow import Flow, Query, run_sync
from onceward.stores.inside import ended, whole


class Remembering:
    """Performs whatever it is asked; going back raises what it was told to."""

    undoes_statements_only = True

    def __init__(self, gone: Exception | None) -> None:
        self.gone, self.asked = gone, list[str]()

    def perform(self, request: Any) -> None:
        self.asked.append(request.name)
        if self.gone is not None and request.name == "rollback_inside":
            raise self.gone


def failing(error: Exception) -> Flow[None]:
    yield Query("receive")
    raise error


def refused(error: Exception, gone: Exception | None = None) -> tuple[BaseException, list[str]]:
    session = Remembering(gone)
    with pytest.raises(type(error)) as caught:
        run_sync(whole(failing(error), session), session.perform)
    return caught.value, session.asked


def test_a_step_that_raises_is_undone() -> None:
    error = StoreError("refused")
    assert refused(error) == (error, ["begin_inside", "receive", "rollback_inside"])


@pytest.mark.parametrize("error", [StoreConflict("Deadlock found"), StoreUnavailable("disk full")])
def test_a_transaction_that_is_gone_is_said(error: Exception) -> None:
    raised, _ = refused(error, ended())
    assert "undone your whole transaction" in str(raised)
    assert str(error) in str(raised)


def test_a_lost_connection_is_told_as_it_was() -> None:
    error = StoreUnavailable("MySQL cannot be reached")
    assert refused(error, StoreUnavailable("away")) == (error, ["begin_inside", "receive", "rollback_inside"])


@pytest.mark.parametrize("call", ["receive", "send"])
@pytest.mark.parametrize("undone", ["ABORT", "ROLLBACK"])
def test_on_sqlite_nothing_of_a_failed_call_is_committed(tmp_path: Path, call: str, undone: str) -> None:
    with Inbox(f"sqlite:///{tmp_path / 'shop.db'}") as inbox:
        inbox.migrate()
        inbox.on("order.paid")(_nothing)

        def made(**more: Any) -> Any:
            message: Any = {"type": "order.paid", "id": "m1", "data": {}, **more}
            return inbox.receive(source="shop", **message) if call == "receive" else inbox.send(**message)

        connection = sqlite3.connect(tmp_path / "shop.db")
        connection.execute("CREATE TABLE own (id text)")
        connection.execute(
            f"CREATE TRIGGER refusing BEFORE INSERT ON onceward_queue BEGIN SELECT RAISE({undone}, 'no room'); END"
        )
        connection.execute("INSERT INTO own VALUES ('kept')")
        expected = "no room" if undone == "ABORT" else r"undone your whole transaction.*no room"
        with pytest.raises(StoreError, match=expected):
            made(tx=connection)
        connection.commit()
        counts = [_count(connection, table) for table in ("own", "onceward_ledger", "onceward_body", "onceward_queue")]
        assert counts == [1 if undone == "ABORT" else 0, 0, 0, 0]
        connection.execute("DROP TRIGGER refusing")
        made(tx=connection)
        connection.commit()
        assert _count(connection, "onceward_queue") == 1
        connection.close()


def _count(connection: sqlite3.Connection, table: str) -> int:
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


def _nothing(_: Message) -> None:
    """Has no effect."""
