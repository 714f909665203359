"""Statements that travel together: one packet and one wait, however many they are; each has its own answer.

Invariant: what does not read every answer closes the connection, for the next one would get what is left. After an
error the server runs none of what comes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from onceward.stores.mysql.failures import is_of_server
from onceward.stores.mysql.statement import packets

IN_TRANSACTION, NO_BACKSLASH = 1, 512
"""Of the state that the server sends with each answer."""
_DECIMAL = 246
BEGIN, COMMIT, ROLLBACK = b"START TRANSACTION", b"COMMIT", b"ROLLBACK"

Rows = list[tuple[Any, ...]]


def send(connection: Any, statements: Sequence[bytes]) -> list[Rows]:
    """Send statements over a connection of ours; the rows of each."""
    found: list[Rows] = []
    for packet in packets(statements, connection.largest):
        try:
            connection.own_query(packet)
            found.append(_rows(connection._result))  # noqa: SLF001 - a cursor would cost more than the statement
            while connection._result is not None and connection._result.has_next:  # noqa: SLF001
                connection.next_result()
                found.append(_rows(connection._result))  # noqa: SLF001
        except BaseException as error:
            if not is_of_server(error):  # interrupted in the middle of an answer
                connection.force_close()
            raise
    return found


async def send_async(connection: Any, statements: Sequence[bytes]) -> list[Rows]:
    """As `send`, awaited."""
    found: list[Rows] = []
    for packet in packets(statements, connection.largest):
        try:
            await connection.own_query(packet)
            found.append(_rows(connection._result))  # noqa: SLF001
            while connection._result is not None and connection._result.has_next:  # noqa: SLF001
                await connection.next_result()
                found.append(_rows(connection._result))  # noqa: SLF001
        except BaseException as error:
            if not is_of_server(error):  # cancelled in the middle of an answer
                connection.force_close()
            raise
    return found


def _rows(result: Any) -> Rows:
    if result is None or not result.rows:
        return []
    return whole(list(result.rows), result.description)


def whole(rows: Rows, description: Any) -> Rows:
    """Rows without decimals: sums are, and ours are of whole numbers."""
    kinds = [column[1] for column in description or ()]
    if _DECIMAL not in kinds:
        return rows
    return [tuple(int(value) if isinstance(value, Decimal) else value for value in row) for row in rows]
