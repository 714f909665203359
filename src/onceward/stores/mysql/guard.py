"""The `tx` of a handler on MySQL: a connection of the driver that begins lazily and cannot end its transaction."""

from __future__ import annotations

import re
import threading
from functools import cache
from time import perf_counter
from typing import Any, NoReturn

from pymysql.connections import Connection

from onceward.errors import ContractViolation, HandlerTimeout
from onceward.stores.calls import Owned
from onceward.stores.dry_run import Statement
from onceward.stores.mysql.address import unverified
from onceward.stores.mysql.failures import SWALLOWED, is_of_driver, is_of_server, number, swallowed
from onceward.stores.mysql.script import check, undoes
from onceward.stores.mysql.wire import IN_TRANSACTION, send

_NO_TRANSACTION = frozenset([1213, 3101, 9007, 8002, 8022, 8028])
"""Errors after which nothing of the transaction is there any more."""
_MATCHED = re.compile(rb"Rows matched: (\d+)")


class Guard(Owned):
    """What both worlds check around a handler's statement."""

    pending_begin: list[bytes] | None = None
    """What begins the transaction, before its first statement."""
    swallowed: BaseException | None = None
    """The last error after which the handler must not finish; it may have caught it."""
    is_lost: bool = False
    """The transaction is gone."""
    is_broken: bool = False
    """It was closed here, in the middle of an answer, and not because the server is away."""
    is_changed: bool = False
    """A handler has set or made something that outlasts its transaction: the next one gets another connection."""
    recorded: list[Statement] | None = None
    """Where the handler's statements are recorded, in a dry run."""
    limits: tuple[int, float] | None = None
    """The limits that the connection has now."""
    server_status: int
    number: int = 0
    """What the server calls it."""
    counts_matched: bool = False
    """What a statement has changed is what it has found, also where that was so already."""
    _result: Any
    largest: int = 1 << 24
    """How many bytes the server takes at a time."""
    flavour: str = ""
    """What the server says it is."""
    used_at: float = 0.0
    """When it was given back."""

    def lend(self) -> None:
        super().lend()
        self.__dict__["counts_matched"] = False

    def count_matched(self) -> None:
        """Until the call ends, an UPDATE has changed what it has found, as SQLAlchemy and Django want it counted."""
        self.__dict__["counts_matched"] = True

    def check(self, sql: str | bytes) -> str:
        """Keep the handler inside its one transaction."""
        self.check_owner()
        text = sql if isinstance(sql, str) else bytes(sql).decode(errors="replace")
        if self.recorded is not None:
            self.recorded.append(Statement.of(text, None))
        if self.overrun:
            raise HandlerTimeout("the handler has run longer than its timeout")
        if check(text):
            self.__dict__["is_changed"] = True
        self.sends(text)
        if self.is_lost and self.swallowed is not None:
            # It has passed over it, and all it did is undone.
            raise swallowed(self.swallowed) if self.is_broken else self.swallowed
        if self.is_lost:
            raise ContractViolation("the transaction has ended before the handler did")
        return text

    def passed(self, text: str) -> None:
        """A statement of the handler was answered."""
        if self.counts_matched:
            self._count_matched()
        if not self.server_status & IN_TRANSACTION:
            self.__dict__["is_lost"] = True
        elif self.swallowed is not None and undoes(text):
            self.__dict__["swallowed"] = None

    def _count_matched(self) -> None:
        result = self._result
        said = result.message if result is not None else None
        if said and (found := _MATCHED.search(said if isinstance(said, bytes) else said.encode())):
            result.affected_rows = int(found[1])

    def failed(self, error: BaseException) -> None:
        """A statement of the handler failed."""
        which = number(error)
        if which in SWALLOWED:
            self.__dict__["swallowed"] = error
        if which in _NO_TRANSACTION:
            self.__dict__["is_lost"] = True
        if not (is_of_server(error) or isinstance(error, UnicodeEncodeError)):  # that one was never sent
            if not is_of_driver(error):
                self.breaks(error)
            self.force_close()

    def breaks(self, error: BaseException) -> None:
        """An answer is not read to its end: the next statement would get what is left, so there must be none."""
        if not self.is_broken:
            self.__dict__.update(is_broken=True, is_lost=True, swallowed=error)

    def force_close(self) -> None:
        """Close at once, also while it is in use."""
        raise NotImplementedError

    def begins(self, opening: list[bytes]) -> None:
        """A transaction begins with these, at its first statement."""
        self.__dict__.update(pending_begin=opening, swallowed=None, is_lost=False)

    def take_pending_begin(self) -> list[bytes]:
        """What begins the transaction, if it has not begun."""
        opening, self.__dict__["pending_begin"] = self.pending_begin or [], None
        return opening

    def record(self) -> list[Statement]:
        """Record the handler's statements from here on."""
        recorded: list[Statement] = []
        self.__dict__["recorded"] = recorded
        return recorded

    def refuse(self, what: str) -> NoReturn:
        """Raise: the handler tried to end its transaction."""
        self.check_owner()
        raise ContractViolation(
            f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back"
        )

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent over it any more."""
        raise NotImplementedError


@cache
def _preferred() -> Any:
    return unverified()


class PlainConnection(Connection):
    """A connection of PyMySQL, with what other drivers have."""

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        # Where nothing is said about TLS it is used if the server has it, whoever that is: PyMySQL would read all the
        # authorities that the system trusts, for each connection anew.
        return super()._create_ssl_ctx(sslp) if sslp else _preferred()

    def execute(self, query: str, args: Any = None) -> Any:
        """A cursor that has executed a statement."""
        cursor = self.cursor()
        cursor.execute(query, args)
        return cursor

    def fileno(self) -> int:
        """Of its socket."""
        return int(self._sock.fileno())


class HandlerConnection(Guard, PlainConnection):
    """The `tx` of a `def` handler."""

    def __init__(self, **arguments: Any) -> None:
        self.__dict__["busy"] = threading.RLock()
        super().__init__(**arguments)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent over it any more."""
        return not self.open

    def query(self, sql: Any, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002 - PyMySQL's signature
        with self.__dict__["busy"]:
            text, began = self.check(sql), perf_counter()
            try:
                if self.pending_begin is not None:
                    send(self, self.take_pending_begin())
                changed = super().query(sql, unbuffered)
            except BaseException as error:
                self.failed(error)
                raise
            finally:
                self.__dict__["inside"] += perf_counter() - began
            if not unbuffered:
                self.passed(text)
            return int(changed)

    def own_query(self, sql: bytes) -> None:
        """Send statements of ours."""
        super().query(sql)

    def force_close(self) -> None:
        """Close, also while it is in use."""
        self._force_close()

    def begin(self) -> None:
        self.refuse("begin()")

    def commit(self) -> None:
        self.refuse("commit()")

    def rollback(self) -> None:
        self.refuse("rollback()")

    def close(self) -> None:
        if self.in_handler:
            self.refuse("close()")
        self._force_close()

    def autocommit(self, value: Any) -> None:
        if self.number:  # else it is being opened
            self.refuse("autocommit()")
        super().autocommit(value)

    def select_db(self, db: Any) -> None:
        self.query("USE " + "`" + str(db).replace("`", "``") + "`")

    def __enter__(self) -> NoReturn:
        self.refuse("`with tx:`, which closes the connection at its end")
