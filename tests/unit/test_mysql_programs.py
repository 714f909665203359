"""What is tried and not waited for: some servers leave out what others have locked, and TiDB fails there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pymysql
import pytest

from onceward.flow import run_sync
from onceward.stores.mysql.programs import HOLDERS, Ask, performed
from onceward.stores.mysql.statement import Named, literal
from onceward.stores.statements import load

_LOCK_TIMEOUT, _NOT_BUSY = 3572, 1064


class Server:
    """Answers as a server does on which others have locked some rows: MariaDB leaves them out, TiDB fails."""

    def __init__(self, name: str, others: Sequence[int], error: int = _LOCK_TIMEOUT) -> None:
        self.named = Named(load("mysql", "onceward_", "", name), name)
        self.others, self.error = frozenset(others), error
        self.asked: list[list[str]] = []

    def perform(self, name: str, records: Sequence[Any] = (), **params: Any) -> Any:
        """The answer to a request for a named statement."""
        tail = run_sync(performed(Ask(self.named, name, params, records, literal)), self.send)  # type: ignore[arg-type] # packets
        return tail.answered(self.send(tail.statements) if tail.statements else [])

    def send(self, statements: Sequence[bytes]) -> list[list[tuple[Any, ...]]]:
        """The rows of each."""
        texts = [one.decode() for one in statements]
        self.asked.append(texts)
        return [self._rows(text) for text in texts]

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        wanted = [int(one) for one in re.findall(r"\d+", text.partition(" WHERE ")[2])]
        if "NOWAIT" in text and self.others.intersection(wanted):
            raise pymysql.err.OperationalError(self.error, "it is locked")
        return [(one,) for one in wanted if one not in self.others or "SKIP LOCKED" not in text]


@pytest.fixture(params=["mysql", "tidb"])
def name(request: pytest.FixtureRequest) -> str:
    """Whose words the statements are in."""
    return str(request.param)


@pytest.mark.parametrize("others", [[], [3], [1, 2, 8], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_keys_that_others_have_locked_are_passed_over(name: str, others: list[int]) -> None:
    """R36: TiDB reads past SKIP LOCKED and locks nothing; what is answered here has to be locked everywhere."""
    keys = range(1, 9)
    server = Server(name, others)
    rows = server.perform("lock_free_keys", [{"key_hash": key} for key in keys])
    free = [key for key in keys if key not in others]
    assert [key for (key,) in rows] == free
    written = [text for packet in server.asked for text in packet if text.startswith("UPDATE")]
    assert [re.findall(r"\d+", text.partition(" IN ")[2]) for text in written] == [[*map(str, free)]] * bool(free)
    assert [seq for (seq,) in server.perform("lock_ledger", seqs=[*keys])] == free


def test_what_travels_before_it_is_answered_before_something_is_tried() -> None:
    """The error of a statement takes the answers of its packet along."""
    server = Server("tidb", [1])
    server.perform("lock_free_keys", [{"key_hash": 1}])
    assert server.asked[0] == []


def test_another_error_is_not_taken_for_a_lock() -> None:
    server = Server("tidb", [1], _NOT_BUSY)
    with pytest.raises(pymysql.err.OperationalError):
        server.perform("lock_free_keys", [{"key_hash": 1}])


@pytest.mark.parametrize("taken", range(HOLDERS + 1))
def test_callers_hold_the_catalog_each_by_a_row_of_its_own_where_a_lock_is_not_shared(taken: int) -> None:
    """On TiDB: a transaction takes any that is free, and waits for one where all are taken."""
    server = Server("tidb", range(1, taken + 1))
    server.perform("hold_catalog")
    (last,) = server.asked[-1]
    assert ("NOWAIT" in last) == (taken < HOLDERS)
    (place,) = map(int, re.findall(r"place = (\d+)", last))
    assert place > taken or taken == HOLDERS


def test_a_transaction_that_receives_again_takes_no_other_row() -> None:
    """Else one that receives many messages would hold all of them."""
    server = Server("tidb", [3])
    for _ in range(2 * HOLDERS):
        server.perform("hold_catalog")
    held = {text.partition("place = ")[2] for packet in server.asked for text in packet[-1:]}
    assert len({one for one in held if not one.startswith("3 ")}) == 1


def test_a_shared_lock_is_held_on_one_row() -> None:
    server = Server("mysql", [])
    server.perform("hold_catalog")
    assert len(server.asked) == 1
    (asked,) = server.asked[0]
    assert "place = 1 LOCK IN SHARE MODE" in asked


def test_a_heartbeat_does_not_wait_for_a_claim() -> None:
    """On TiDB a lock of the worker's row is held alone; a claim and a take-over meet in another row."""
    server = Server("tidb", [])
    where: dict[str, Any] = {
        "destination": None,
        "subscriptions": [1],
        "limit": 10,
        "retries": 5,
        "cursor": 0,
        "token": 8,
    }
    server.perform("claim", worker=7, **where)
    claimed = server.asked[0]
    server.perform("lock_worker", worker=7)
    taken_over = server.asked[-1]
    assert [text for text in claimed if "onceward_worker" in text and "FOR UPDATE" in text] == []
    assert claimed[0] == taken_over[0]
    assert claimed[0].startswith("INSERT INTO onceward_key_lock (key_hash) VALUES (7)")


def test_nothing_that_tidb_reads_past_is_said_to_it() -> None:
    """It has no shared locks, and SKIP LOCKED locks nothing."""
    texts = [text for parts in load("mysql", "onceward_", "", "tidb").values() for text in parts]
    assert not [text for text in texts if re.search(r"SKIP LOCKED|SHARE MODE", text)]
    assert [text for text in texts if "FOR UPDATE NOWAIT" in text]
