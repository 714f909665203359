"""A shop on FastAPI: async SQLAlchemy, Stripe's webhook, and the worker in the application's lifespan.

    pip install 'onceward[standard,fastapi,sqlalchemy,sqlite]' uvicorn
    export SHOP_STRIPE_SECRET=whsec_...      # Stripe's signing secret of this endpoint
    uvicorn examples.fastapi_shop.app:app    # SHOP_DATABASE=postgresql://... for PostgreSQL

`POST /orders` stores an order, and a message in the same commit; its handler confirms the order. Stripe's
`checkout.session.completed` comes to `POST /hooks/stripe`; its handler books the payment, once, however often Stripe
sends the event and whenever the process dies. The columns `confirmations` and `payments` count how often that happened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, HTTPException, status
from pydantic import BaseModel, PositiveInt
from sqlalchemy import BigInteger
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceward import Inbox, Message, Reject
from onceward.integrations.fastapi import webhook_router
from onceward.webhooks import Stripe

DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///fastapi_shop.db")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
SCHEME, _, PLACE = DATABASE.partition(":")

inbox = Inbox(DATABASE, service="shop")
engine = create_async_engine(f"{DRIVERS[SCHEME]}:{PLACE}")
new_session = async_sessionmaker(engine)


class Table(DeclarativeBase):
    """What the shop's tables have in common."""


class Order(Table):
    """An order, and how often its messages took effect."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(BigInteger)
    confirmations: Mapped[int] = mapped_column(default=0)
    payments: Mapped[int] = mapped_column(default=0)


@inbox.on("order.placed", key="order_id")
async def confirm(message: Message, session: AsyncSession) -> None:
    """Confirm an order."""
    order = await session.get_one(Order, message.data["order_id"])
    order.confirmations += 1


@inbox.on("checkout.session.completed", key="data.object.client_reference_id")
async def pay(message: Message, session: AsyncSession) -> None:
    """Book a payment, in the transaction in which its message is finished."""
    checkout = message.data["data"]["object"]
    order = await session.get(Order, checkout["client_reference_id"])
    if order is None:
        raise Reject(f"there is no order {checkout['client_reference_id']}")
    order.payments += 1


@asynccontextmanager
async def database(_: FastAPI) -> AsyncIterator[None]:
    """The shop's own lifespan: its tables and its engine are there before the workers are, and longer."""
    async with engine.begin() as connection:
        await connection.run_sync(Table.metadata.create_all)
    await asyncio.to_thread(inbox.migrate)
    yield
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    """The request's transaction: committed when the endpoint returns, rolled back when it raises."""
    async with new_session() as session, session.begin():
        yield session


app = FastAPI(title="Shop", lifespan=inbox.lifespan(concurrency=2, around=database))
hooks = inbox.webhooks({"/stripe": Stripe(os.environ.get("SHOP_STRIPE_SECRET", ""))})
app.include_router(webhook_router(hooks), prefix="/hooks")


class NewOrder(BaseModel):
    """What a client sends."""

    amount: PositiveInt


@app.post("/orders", status_code=status.HTTP_201_CREATED)
async def place(
    order: NewOrder, session: Annotated[AsyncSession, Depends(transaction, scope="function")]
) -> dict[str, str]:
    """Store an order and the message about it: both, or neither."""
    order_id = uuid4().hex
    session.add(Order(id=order_id, amount=order.amount))
    await inbox.areceive(source="shop", id=order_id, type="order.placed", data={"order_id": order_id}, tx=session)
    return {"id": order_id}


@app.get("/orders/{order_id}")
async def show(order_id: str, session: Annotated[AsyncSession, Depends(transaction)]) -> dict[str, Any]:
    """An order, and what became of it."""
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND)
    return {"id": order.id, "amount": order.amount, "confirmations": order.confirmations, "payments": order.payments}
