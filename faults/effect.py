"""What booking a payment does: one balance is changed, one row is inserted, in one transaction of the database.

The table of payments has no unique key: who books twice has two rows. The balance comes first, so that its lock puts the
payments of an account in the order of their commits, and the row's number shows it. Contenders import this in
environments of their own: it needs the standard library and, for `Ledger`, psycopg.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from faults.place import Place

if TYPE_CHECKING:
    import psycopg

    from faults.plan import Payment

_NUMBER = {
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
}
_BALANCE = "CREATE TABLE balance (account varchar(50) PRIMARY KEY, amount bigint NOT NULL)"
_PAYMENT = (
    "CREATE TABLE payment (number {number}, id varchar(50) NOT NULL, account varchar(50) NOT NULL,"
    " position bigint NOT NULL, amount bigint NOT NULL)"
)
UPDATE = "UPDATE balance SET amount = amount + :amount WHERE account = :account"
INSERT = "INSERT INTO payment (id, account, position, amount) VALUES (:id, :account, :position, :amount)"
HANDLER_SECONDS = 0.005
"""How long a handler takes besides its two statements: faults meet it at work."""

Execute = Callable[[str, dict[str, Any]], object]
"""Runs a statement with `:name` parameters in the transaction of the attempt."""


class RaisesOnce(Exception):
    """A handler that fails the first time, after it has written."""


class Poison(Exception):
    """A message that no handler can book."""


def tables(scheme: str, accounts: list[str]) -> list[str]:
    """The statements that make the effect tables, with every balance at nothing."""
    rows = ", ".join(f"('{account}', 0)" for account in accounts)
    return [_BALANCE, _PAYMENT.format(number=_NUMBER[scheme]), f"INSERT INTO balance (account, amount) VALUES {rows}"]


def book(place: Place, payment: Payment, execute: Execute) -> None:
    """The handler of every contender; the caller's transaction commits what it wrote, or undoes it when this raises."""
    attempt = _count(place, payment.id)
    values = {"id": payment.id, "account": payment.account, "position": payment.position, "amount": payment.amount}
    execute(UPDATE, {"account": payment.account, "amount": payment.amount})
    time.sleep(HANDLER_SECONDS)
    execute(INSERT, values)
    if payment.kind == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    if payment.kind == "poison":
        raise Poison(f"{payment.id} cannot be booked")
    if payment.kind == "raises once" and attempt == 1:
        raise RaisesOnce(f"{payment.id} fails the first time")


def _count(place: Place, name: str) -> int:
    """Append a byte to the file of a message; returns which attempt this is."""
    file = os.open(place.attempts / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, b"x")
        return os.fstat(file).st_size
    finally:
        os.close(file)


class Ledger:
    """Books in PostgreSQL, each payment in a transaction of its own: for contenders that leave that to their user."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._local = threading.local()

    def book(self, payment: Payment, before: Callable[[psycopg.Connection[Any]], bool] | None = None) -> None:
        """Book one; `before` runs first in the same transaction, and nothing is booked where it returns False."""
        connection = self.connection()
        try:
            with connection.transaction():
                if before is None or before(connection):
                    book(self._place, payment, lambda sql, values: connection.execute(placed(sql), values))
        except BaseException:
            if connection.broken or connection.closed:
                self._local.connection = None
            raise

    def connection(self) -> psycopg.Connection[Any]:
        """The connection of this thread, made anew after it was lost and after a fork."""
        import psycopg  # noqa: PLC0415 - onceward's own processes may do without

        found = getattr(self._local, "connection", None)
        if found is None or found.closed or self._local.pid != os.getpid():
            found = psycopg.connect(self._place.database, autocommit=True, connect_timeout=5)
            self._local.connection, self._local.pid = found, os.getpid()
        return found


def placed(sql: str) -> str:
    """The statement as psycopg writes parameters."""
    return re.sub(r":(\w+)", r"%(\1)s", sql)
