"""A session in a caller's own transaction, over the caller's own connection: statement by statement, as its own are.

PyMySQL, mysqlclient and asyncmy have the same shape. Nothing of the connection is changed; how it reads text is asked
for, and where the transaction keeps to a view of its own (REPEATABLE READ, the default) what is known is read as it is
now.

Invariant: the savepoint of a call is set before its first statement, for the server undoes the one that fails and keeps
those before it. It is not released: the next call replaces it, and the commit ends it, without a round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from onceward.errors import ConfigurationError, StoreError
from onceward.flow import Each, Query, run_async, run_sync
from onceward.stores.mysql.failures import is_of_driver, translated
from onceward.stores.mysql.guard import Guard
from onceward.stores.mysql.programs import Ask, Program, Rows, Tail, performed
from onceward.stores.mysql.statement import Named, literal, packets, plain_literal
from onceward.stores.mysql.wire import IN_TRANSACTION, send, send_async, whole
from onceward.stores.statements import WORDS

_ASKED = "SELECT @@sql_mode, @@character_set_client, @@max_allowed_packet, @@{}, {}"


class _Joined:
    """What both worlds share."""

    undoes_statements_only = True
    """As `whole` (stores/inside.py) asks."""

    def __init__(self, statements: Named, connection: Any) -> None:
        self._statements, self.connection = statements, connection
        self._write: Callable[[Any], bytes] = literal
        self._keeps_view = False
        self._largest = getattr(connection, "largest", 0)
        self._savepoint: list[bytes] = []
        """What travels before the first statement."""

    @property
    def idle(self) -> bool:
        """Never: the transaction is the caller's."""
        return False

    def _question(self) -> str:
        flavour = str(self.connection.get_server_info())
        isolation = "tx_isolation" if "maria" in flavour.lower() else "transaction_isolation"
        return _ASKED.format(isolation, "@@tidb_txn_mode" if self._statements.is_tidb else "'pessimistic'")

    def _learn(self, mode: Any, charset: Any, largest: int, isolation: Any, locking: Any) -> None:
        mode, charset, isolation, locking = (_text(one) for one in (mode, charset, isolation, locking))
        if locking != "pessimistic":
            raise ConfigurationError(
                "tx= is on a connection to TiDB whose transactions are optimistic: it would hold no lock before its "
                "commit; SET SESSION tidb_txn_mode = 'pessimistic' before the transaction begins"
            )
        if charset != "utf8mb4":
            raise ConfigurationError(
                f"tx= is on a connection in {charset}, in which not every text can be sent; connect with "
                "charset='utf8mb4'"
            )
        self._write = plain_literal if "NO_BACKSLASH_ESCAPES" in mode.upper() else literal
        self._keeps_view = isolation.upper().replace(" ", "-") != "READ-COMMITTED"
        self._largest = largest

    def _exchange(self, requests: tuple[Any, ...]) -> Generator[Sequence[bytes], list[Rows], list[Any]]:
        answers = []
        for request in requests:
            tail = yield from self._program(request)
            answers.append(tail.answered((yield list(tail.statements)) if tail.statements else []))
        return answers

    def _program(self, request: Any) -> Program:
        if not isinstance(request, Query | Each):
            return Tail()  # begin and commit are the caller's
        if request.name == "begin_inside":
            self._savepoint = [self._statements[request.name][0].rendered({}, literal)]
            return Tail()
        if request.name == "commit_inside" or (request.name == "rollback_inside" and self._take_savepoint()):
            return Tail()
        records = request.records if isinstance(request, Each) else ()
        if isinstance(request, Each) and not records:
            return Tail()
        params = dict(request.shared if isinstance(request, Each) else request.params)
        latest = WORDS[self._statements.server]["shared"].encode() if self._keeps_view else b""
        ask = Ask(self._statements, request.name, params, records, self._write, latest, self._keeps_view)
        return (yield from performed(ask))

    def _take_savepoint(self) -> list[bytes]:
        """What sets the savepoint, unless that was sent already."""
        setting, self._savepoint = self._savepoint, []
        return setting

    def _translated(self, error: BaseException) -> StoreError:
        return translated(error, closed=False)  # type: ignore[return-value] # no handler has sent it

    def cut(self) -> None:
        """Nothing of it is ours to end."""

    def interrupt(self) -> None:
        """Nothing of it is ours to end."""


class JoinedSession(_Joined):
    """Over PyMySQL or mysqlclient."""

    def perform(self, request: Any) -> Any:
        requests = request if isinstance(request, tuple) else (request,)
        try:
            if not self._largest:
                self._learn(*self._rows(self._question().encode())[0])
            answers = run_sync(self._exchange(requests), self._send)  # type: ignore[arg-type] # packets, not requests
        except Exception as error:
            if not is_of_driver(error):
                raise
            raise self._translated(error) from error
        return tuple(answers) if isinstance(request, tuple) else answers[0]

    def _send(self, statements: Sequence[bytes]) -> list[Rows]:
        connection, count = self.connection, len(statements)
        packets(statements, self._largest)  # refuses what is too large, before anything is sent
        statements = [*self._take_savepoint(), *statements]
        if isinstance(connection, Guard):
            return send(connection, [*connection.take_pending_begin(), *statements])[-count:]
        return [self._rows(statement) for statement in statements][-count:]

    def _rows(self, statement: bytes) -> Rows:
        kind = _plain_cursor(self.connection)
        with self.connection.cursor(kind) as cursor:
            cursor.execute(statement)
            return whole(list(cursor.fetchall()), cursor.description) if cursor.description else []

    def close(self) -> None:
        """It is the caller's."""


class AsyncJoinedSession(_Joined):
    """Over asyncmy."""

    async def perform(self, request: Any) -> Any:
        requests = request if isinstance(request, tuple) else (request,)
        try:
            if not self._largest:
                self._learn(*(await self._rows(self._question().encode()))[0])
            answers = await run_async(self._exchange(requests), self._send)  # type: ignore[arg-type] # as above
        except Exception as error:
            if not is_of_driver(error):
                raise
            raise self._translated(error) from error
        return tuple(answers) if isinstance(request, tuple) else answers[0]

    async def _send(self, statements: Sequence[bytes]) -> list[Rows]:
        connection, count = self.connection, len(statements)
        packets(statements, self._largest)
        statements = [*self._take_savepoint(), *statements]
        if isinstance(connection, Guard):
            return (await send_async(connection, [*connection.take_pending_begin(), *statements]))[-count:]
        return [await self._rows(statement) for statement in statements][-count:]

    async def _rows(self, statement: bytes) -> Rows:
        async with self.connection.cursor(_plain_cursor(self.connection)) as cursor:
            await cursor.execute(statement)
            return whole(list(await cursor.fetchall()), cursor.description) if cursor.description else []

    def abandon(self) -> None:
        """It is the caller's."""

    async def close(self) -> None:
        """It is the caller's."""


def check_open(tx: Any) -> None:
    """Refuse a connection in whose transaction nothing would be."""
    if isinstance(tx, Guard):
        tx.check_owner()
        return
    automatic = tx.get_autocommit()
    if automatic and not getattr(tx, "server_status", 0) & IN_TRANSACTION:
        raise ConfigurationError(
            "tx= has no open transaction (it is in autocommit mode), so nothing would be joined; begin one with "
            "connection.begin(), or connect with autocommit=False"
        )


def _plain_cursor(connection: Any) -> Any:
    """The kind of cursor that answers tuples, whatever the caller's usual one is."""
    package = next(base.__module__.partition(".")[0] for base in type(connection).__mro__ if _is_driver(base))
    if package == "MySQLdb":
        from MySQLdb.cursors import Cursor  # noqa: PLC0415 - a driver of the caller's
    elif package == "asyncmy":
        from asyncmy.cursors import Cursor  # noqa: PLC0415 - as above
    else:
        from pymysql.cursors import Cursor  # noqa: PLC0415 - as above
    return Cursor


def _is_driver(base: type) -> bool:
    return base.__module__.partition(".")[0] in ("MySQLdb", "asyncmy", "pymysql")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def is_sync_driver(tx: Any) -> bool:
    """Whether it is a connection of PyMySQL or mysqlclient."""
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(tx).__mro__}
    return bool(names & {"pymysql.Connection", "MySQLdb.Connection"})


def is_async_driver(tx: Any) -> bool:
    """Whether it is a connection of asyncmy."""
    return any(base.__module__.partition(".")[0] == "asyncmy" for base in type(tx).__mro__)
