"""Crashes, as failed moves: at every request of a session the store is gone, before it or right after it.

After each fault the program goes on, or comes again, and the end is as if nothing had happened. A request is whatever
the store's moves yield, so every place is met at which a store could leave something half done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from onceward.errors import OncewardError, StoreUnavailable
from onceward.flow import ROLLBACK, Call, Reconnect
from onceward.message import Message
from onceward.steps import membership
from onceward.stores.protocol import Store
from onceward.testing.store_suite.behaviour import Steps, wrote
from onceward.testing.store_suite.outbox import opened
from onceward.testing.store_suite.shop import Shop

MOST = 400
"""More requests than any of these scenarios makes."""


class Fault:
    """The connection is lost at one request: before it was performed, or after it, with its answer."""

    def __init__(self) -> None:
        self.at, self.after, self.count, self.hit = -1, False, 0, False

    def arm(self, at: int, *, after: bool) -> None:
        """At the next request with this number."""
        self.at, self.after, self.count, self.hit = at, after, 0, False

    def is_due(self, request: Any) -> bool:
        """Count a request, and say whether the connection is lost there. What onceward asks for itself is spared."""
        if isinstance(request, Call | Reconnect):
            return False
        self.count += 1
        due = self.count - 1 == self.at
        self.hit = self.hit or due
        return due


class FaultySession:
    """A session whose connection can be lost: the store rolls back, and nothing goes until there is another one."""

    def __init__(self, session: Any, fault: Fault) -> None:
        self._session, self._fault, self._is_lost = session, fault, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def perform(self, request: Any) -> Any:
        """Perform, or lose the connection."""
        self._meet(request)
        if not self._fault.is_due(request):
            return self._session.perform(request)
        if self._fault.after:
            self._session.perform(request)
        self._session.perform(ROLLBACK)
        raise self._lost()

    def _meet(self, request: Any) -> None:
        if isinstance(request, Reconnect):
            self._is_lost = False
        if self._is_lost:
            raise self._lost()

    def _lost(self) -> StoreUnavailable:
        self._is_lost = True
        return StoreUnavailable("the connection is lost")


class AsyncFaultySession(FaultySession):
    """The same, awaited."""

    async def perform(self, request: Any) -> Any:
        """Perform, or lose the connection."""
        self._meet(request)
        if not self._fault.is_due(request):
            return await self._session.perform(request)
        if self._fault.after:
            await self._session.perform(request)
        await self._session.perform(ROLLBACK)
        raise self._lost()


class FaultyStore:
    """A store whose sessions can be lost."""

    def __init__(self, store: Store, fault: Fault) -> None:
        self._store, self._fault = store, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """As the store's."""
        with self._store.session() as session:
            yield FaultySession(session, self._fault)

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[Any]:
        """As the store's."""
        async with self._store.async_session() as session:
            yield AsyncFaultySession(session, self._fault)

    def connect(self) -> Any:
        """As the store's."""
        return FaultySession(self._store.connect(), self._fault)

    async def async_connect(self) -> Any:
        """As the store's."""
        return AsyncFaultySession(await self._store.async_connect(), self._fault)


def failing(shop: Shop, fault: Fault) -> Shop:
    """Another process on the store, whose connection can be lost."""
    other = shop.another()
    faulty: Any = FaultyStore(other.inbox.store, fault)
    for part in (other.inbox, other.inbox._receiver, other.inbox._sender, other.inbox.inline, other.inbox._workers):
        for name in ("store", "_store"):
            if name in vars(part):
                setattr(part, name, faulty)
    return other


def tried(act: Callable[[], Any]) -> None:
    """A call of a program that goes on when it fails, as one that was killed comes again."""
    try:
        act()
    except OncewardError:
        return


def bury(shop: Shop) -> None:
    """What a supervisor does for a process that could not say good-bye."""
    for worker in shop.inbox.admin.workers():
        shop.step(membership.take_over_process(shop.inbox.context, worker.process, "its connection was lost"))


class Crashes:
    """Crashes, as failed moves: at every request of a session the store is gone, before it or right after it."""

    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize("how", ["receive", "process", "keyed", "failing"])
    def test_anything_may_fail_anywhere(self, shop: Shop, how: str, moment: str) -> None:
        """Received again, worked until nothing is due: each message has had its effect once, and sent one message."""
        post = opened(shop)

        def behaviour(message: Message) -> Steps:
            yield wrote(message)
            message.send("shipped", {"name": message.id})
            if how == "failing" and message.attempt == 1:
                raise RuntimeError("not yet")

        key: Any = {"key": "k"} if how == "keyed" else {}
        shop.handle(behaviour=behaviour, **key)
        shop.drain()
        fault = Fault()
        expected: list[str] = []
        for at in range(MOST):
            other = failing(shop, fault)
            other.handle(behaviour=behaviour, **key)
            ids = [f"m{at}-{number}" for number in range(2)]
            fault.arm(at, after=moment == "after")
            for message_id in ids:
                call = other.process if how == "process" else other.receive
                tried(lambda call=call, message_id=message_id: call(message_id, data={"k": "k"}))  # type: ignore[misc] # a call
            tried(other.drain)
            was_met = fault.hit
            fault.arm(-1, after=False)
            other.close()
            bury(shop)
            for message_id in ids:  # the producer has no receipt, or comes again anyway
                shop.receive(message_id, data={"k": "k"})
            shop.finish()
            expected += ids
            if not was_met:
                break
        assert shop.effects() == sorted(expected)
        assert sorted(set(post.names)) == sorted(expected)
        assert len(expected) > 10, "faults were met"
