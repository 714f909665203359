"""Statements that travel together: one write and one wait, however many they are.

Where the connection is not `pipelined` they go one by one instead (`cursors.py`): what this module needs of psycopg
beyond its documented cursors is behind that switch.

psycopg's own pipeline waits for the answer to BEGIN and writes every statement by itself, which costs client and server
more than the statements do. This one is made of the same parts (`psycopg.pq`), for our own statements only.

Invariant: what does not read every answer closes the connection, for the next one would get what is left. Which
statements the server has prepared is remembered with the connection, and a statement counts only when it said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psycopg import errors as pg
from psycopg import generators
from psycopg.pq import ExecStatus, Format

from onceward.stores.postgres import cursors
from onceward.stores.postgres.statement import Asked, Encoded, Statement

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult

# After a handler that has set something, before our own statements: what it deferred is checked under its settings.
IMMEDIATE = Statement.of("immediate", "SET CONSTRAINTS ALL IMMEDIATE")
OWN_USER = Statement.of("own_user", "RESET SESSION AUTHORIZATION")
OWN_ROLE = Statement.of("own_role", "RESET ROLE")
OWN_SETTINGS = Statement.of(
    "own_settings",
    """SELECT FROM (
        SELECT set_config('statement_timeout', %(statement_limit)s, true),
               set_config('lock_timeout', %(lock_limit)s, true),
               set_config('idle_in_transaction_session_timeout', %(idle_limit)s, true),
               set_config('client_encoding', 'UTF8', true)
    ) AS settings""",
)
RESET_ALL = Statement.of("reset_all", "RESET ALL")
"""Before the COMMIT of a handler that has set something for its whole connection."""
BY_INDEX = "0"
"""Nothing of what `begin_limits` and `PLANS` name; None: as the server has it."""
PLANS = Statement.of(
    "plans",
    """SELECT FROM (
        SELECT set_config('enable_seqscan', %(plans)s, true),
               set_config('enable_bitmapscan', %(plans)s, true),
               set_config('max_parallel_workers_per_gather', %(plans)s, true),
               set_config('jit', %(plans)s, true)
    ) AS settings""",
)
OWN_PLANS: Asked = (PLANS, {"plans": BY_INDEX})
"""Before statements of ours in the transaction of a handler, as `begin_limits` says it for those that have none: they
find their rows by indexes, in the order of these. The server keeps a plan from when the queue was small or its
statistics were wrong, and that would read and sort all of it. And none of them is worth compiling."""
USUAL_PLANS: Asked = (PLANS, {"plans": None})
"""Before a handler: its plans are its own business."""
BY_RANGE = Statement.of("by_range", "SET LOCAL enable_bitmapscan = on")
"""Before what looks for runs by the range of their numbers, which only a bitmap can."""


def send(connection: Any, plan: Sequence[Asked]) -> list[list[Any]]:
    """Send statements over a connection of ours; the rows of each."""
    if not plan or not connection.pipelined:
        return cursors.send(connection, plan, joined=False)
    exchange = Exchange(connection, plan)
    with connection.lock:
        try:
            answers = connection.wait(exchange.answers())
        except BaseException:
            connection.pgconn.finish()
            raise
    return exchange.rows(answers)


async def send_async(connection: Any, plan: Sequence[Asked]) -> list[list[Any]]:
    """As `send`, awaited."""
    if not plan or not connection.pipelined:
        return await cursors.send_async(connection, plan, joined=False)
    exchange = Exchange(connection, plan)
    async with connection.lock:
        try:
            answers = await connection.wait(exchange.answers())
        except BaseException:
            connection.pgconn.finish()
            raise
    return exchange.rows(answers)


class Exchange:
    """Statements on their way over one connection, and their answers."""

    def __init__(self, connection: Any, plan: Sequence[Asked]) -> None:
        self.connection = connection
        self._libpq = connection.pgconn
        self._prepares = connection.prepare_threshold is not None
        # What cannot be encoded is an error of the caller's, and nothing has been sent yet.
        self._encoded = [(statement, statement.encoded(params)) for statement, params in plan]
        self._asked: list[tuple[Statement, bool]] = []
        """Each is answered in turn: a statement that ran, or (True) that was prepared."""

    def answers(self) -> PQGen[list[PGresult]]:
        """Send the statements; the answer to each, errors among them."""
        self._libpq.enter_pipeline_mode()
        for encoded in self._encoded:
            self.queue(encoded)
        self._libpq.pipeline_sync()
        yield from generators.send(self._libpq)
        found = []
        for what, prepared in self._asked:
            (result,) = yield from generators.fetch_many(self._libpq)
            if not prepared:
                found.append(result)
            elif result.status == ExecStatus.COMMAND_OK:
                self.connection.prepared.add(what.name)
            elif result.status == ExecStatus.FATAL_ERROR:
                found.append(result)  # in place of what cannot run without it
        yield from generators.fetch_many(self._libpq)  # the end of the pipeline
        self._libpq.exit_pipeline_mode()
        return found

    def queue(self, encoded: tuple[Statement, Encoded]) -> None:
        """Add a statement to what will be sent."""
        what, (values, formats) = encoded
        if not self._prepares or not what.slots:  # what takes no parameters is read faster than it is looked up
            self._libpq.send_query_params(what.sql, values, None, formats, Format.BINARY)
        else:
            name = f"onceward_{what.name}".encode()
            if what.name not in self.connection.prepared and (what, True) not in self._asked:
                self._libpq.send_prepare(name, what.sql)
                self._asked.append((what, True))
            self._libpq.send_query_prepared(name, values, formats, Format.BINARY)
        self._asked.append((what, False))

    def rows(self, answers: list[PGresult]) -> list[list[Any]]:
        """The rows of each answer; raises the first error among them."""
        for answer in answers:
            if answer.status == ExecStatus.FATAL_ERROR:
                raise pg.error_from_result(answer, self.connection.info.encoding)
        found = []
        for (what, _), answer in zip(self._encoded, answers, strict=True):
            cursors.check_committed(what, answer)
            found.append(cursors.loaded(answer) if answer.ntuples else [])
        return found
