"""A shop whose handlers work through SQLAlchemy: written once, played with `def` and with `async def` handlers.

A behaviour is a function of a message and a plain Session or Connection. In an `async def` handler it runs in
`run_sync`, as SQLAlchemy has it for code that is written for the sync classes; its last act may be awaited instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, Self

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession  # noqa: TC002 - asked for by annotation
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceward import Inbox, Message, Receipt, RetryPolicy
from onceward.admin.messages import MessageDetail

Kind = Literal["def", "async"]
LATER = RetryPolicy(attempts=2, first=timedelta(hours=1), jitter=0)


class Table(DeclarativeBase):
    """The tables of the shop."""


class Order(Table):
    """What is sold."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[int] = mapped_column(default=0)


Behaviour = Callable[[Message, Any], Any]


def sync_url(url: str, driver: str = "") -> str:
    """The address as SQLAlchemy writes it."""
    scheme, _, rest = url.partition("://")
    usual = {"postgresql": "psycopg", "mysql": "pymysql"}
    return f"{scheme}+{driver or usual[scheme]}://{rest}" if scheme in usual else url


def async_url(url: str, driver: str) -> str:
    """The same for the awaited half."""
    return sync_url(url, driver).replace("sqlite://", "sqlite+aiosqlite://", 1)


class OrmShop:
    """An inbox on a database with two orders."""

    def __init__(self, url: str, kind: Kind, **options: Any) -> None:
        self.url, self.kind = url, kind
        self.inbox = Inbox(sync_url(url), **options)
        self.engine: Engine = create_engine(sync_url(url))
        self.inbox.migrate()
        Table.metadata.create_all(self.engine)
        with Session(self.engine) as session, session.begin():
            session.add_all([Order(id=1), Order(id=2)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()
        self.inbox.close()

    def handle(self, behaviour: Behaviour, message_type: str = "t", **options: Any) -> None:
        """Register a handler that takes a Session."""

        def handler(message: Message, session: Session) -> Any:
            return behaviour(message, session)

        async def async_handler(message: Message, session: AsyncSession) -> Any:
            return await session.run_sync(lambda plain: behaviour(message, plain))

        function: Callable[..., Any] = handler if self.kind == "def" else async_handler
        self.inbox.on(message_type, **{"retry": LATER, **options})(function)

    def handle_connection(self, behaviour: Behaviour, message_type: str = "t") -> None:
        """Register a handler that takes a Connection."""

        def handler(message: Message, connection: Connection) -> Any:
            return behaviour(message, connection)

        async def async_handler(message: Message, connection: AsyncConnection) -> Any:
            return await connection.run_sync(lambda plain: behaviour(message, plain))

        function: Callable[..., Any] = handler if self.kind == "def" else async_handler
        self.inbox.on(message_type, retry=LATER)(function)

    def deliver(self, *ids: str, data: Any = None, message_type: str = "t") -> int:
        """Receive messages and run what is due; answers how many were finished."""
        for one in ids:
            self.inbox.receive(source="s", id=one, type=message_type, data=data)
        return self.inbox.drain()

    def process(self, message_id: str, data: Any = None, message_type: str = "t") -> Receipt:
        """Handle a message inline."""
        given = {"source": "s", "id": message_id, "type": message_type, "data": data}
        if self.kind == "def":
            return self.inbox.process(**given)
        return asyncio.run(self._aprocess(given))

    async def _aprocess(self, given: Any) -> Receipt:
        try:
            return await self.inbox.aprocess(**given)
        finally:
            await self.inbox.store.async_close()

    def paid(self, order: int = 1) -> int:
        """What is committed of an order."""
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT paid FROM orders WHERE id = :id"), {"id": order}).scalar_one())

    def orders(self) -> dict[int, int]:
        """What is committed of all."""
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT id, paid FROM orders")).all()
            return dict(rows)

    def detail(self, message_id: str) -> MessageDetail:
        """What is known of a message."""
        (seq,) = self.inbox.admin.find("s", message_id)
        detail = self.inbox.admin.message(seq)
        assert detail is not None
        return detail

    def error(self, message_id: str) -> str:
        """Its last error."""
        return self.detail(message_id).history[-1].error
