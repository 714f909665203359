"""The statements of receiving and sending on drivers that only SQLAlchemy knows: asyncpg and psycopg2.

They are the store's own; SQLAlchemy writes their parameters as the driver wants them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from onceward.errors import RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.stores.inside import ended
from onceward.stores.postgres.session import AsyncPostgresSession, PostgresSession
from onceward.stores.postgres.statement import Asked

_CONFLICT = ("40001", "40P01")
_AWAY_ONLY = ("08", "53", "57P", "25006", "25P03")
_AWAY = (*_AWAY_ONLY, "55P03", "57014")
_ENDED = ("3B001", "25P01")
"""There is no such savepoint, or no transaction."""
_NUMBERED = re.compile(r"\$(\d+)")


class TextSession(PostgresSession):
    """Inside the transaction of a Connection."""

    @classmethod
    def inside(cls, store: Any, connection: Any) -> Self:
        """A session of the store's."""
        return cls(store.statements(), connection)

    def perform(self, request: Any) -> Any:
        try:
            return super().perform(request)
        except DBAPIError as error:
            raise _translated(error) from error

    def _send(self, plan: Sequence[Asked]) -> list[list[Any]]:
        return [_rows(self.connection.execute(*_executed(asked))) for asked in plan]


class AsyncTextSession(AsyncPostgresSession):
    """Inside the transaction of an AsyncConnection."""

    @classmethod
    def inside(cls, store: Any, connection: Any) -> Self:
        """A session of the store's."""
        return cls(store.statements(), connection)

    async def perform(self, request: Any) -> Any:
        try:
            return await super().perform(request)
        except DBAPIError as error:
            raise _translated(error) from error

    async def _send(self, plan: Sequence[Asked]) -> list[list[Any]]:
        return [_rows(await self.connection.execute(*_executed(asked))) for asked in plan]


def _executed(asked: Asked) -> tuple[TextClause, dict[str, Any]]:
    statement, params = asked
    values = statement.values(params)
    return _text(statement.sql), {f"p{number}": value for number, value in enumerate(values, start=1)}


@lru_cache(maxsize=256)
def _text(sql: bytes) -> TextClause:
    # A cast that follows would make it no parameter: with a space between them it is one.
    return text(_NUMBERED.sub(r":p\1 ", sql.decode()))


def _rows(result: Any) -> list[Any]:
    if not result.returns_rows:
        return []
    return [tuple(bytes(one) if isinstance(one, memoryview) else one for one in row) for row in result]


def is_infrastructure(error: BaseException) -> bool:
    """Whether the database was at fault rather than the message."""
    return isinstance(error, StoreUnavailable | StoreConflict) or _state(error).startswith((*_CONFLICT, *_AWAY_ONLY))


def _state(error: BaseException | None) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _translated(error: DBAPIError) -> StoreError:
    cause = error.orig
    state = _state(cause)
    brief = str(cause).strip().split("\n")[0]
    if state in _ENDED:
        return ended()
    if state.startswith(_CONFLICT):
        return StoreConflict(f"PostgreSQL rolled the transaction back: {brief}")
    if error.connection_invalidated or state.startswith(_AWAY):
        return StoreUnavailable(f"PostgreSQL cannot be reached, or did not answer in time: {brief}")
    kind = RightsMissing if state == "42501" else StoreError
    return kind(f"PostgreSQL refused a statement: {brief}")
