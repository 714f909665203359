"""A connection that a handler gets has counted nothing yet, whatever the handler before did with it."""

from __future__ import annotations

from onceward.stores.calls import Owned, lent


def counted(connection: Owned) -> tuple[bool, float, int, int]:
    return connection.overrun, connection.inside, connection.statements, connection.savepoints


def test_each_call_counts_for_itself() -> None:
    connection = Owned()
    for _ in range(2):
        connection.lend()
        assert counted(connection) == (False, 0.0, 0, 0)
        for sql in ("SELECT 1", "SAVEPOINT a", "savepoint b", "RELEASE SAVEPOINT a"):
            connection.sends(sql)
        connection.__dict__.update(overrun=True, inside=3.0)
        assert counted(connection) == (True, 3.0, 4, 2)
        connection.reclaim()


def test_it_belongs_to_its_call_until_that_has_ended() -> None:
    outer, inner = Owned(), Owned()
    assert lent() == []
    outer.lend()
    inner.lend()
    assert lent() == [outer, inner]
    inner.reclaim()
    assert lent() == [outer]
    outer.reclaim()
    assert lent() == []
