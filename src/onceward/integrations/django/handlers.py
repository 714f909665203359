"""Handlers of a `DjangoInbox`: around each call, the ORM's connection is one on the handler's transaction.

Invariant: when the call is over, the thread has its own connections again, and what the handler left for after the
commit is made after ours, or never.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, NoReturn

from django.db import Error, connections

from onceward.domain.parameters import HandlerTransaction
from onceward.errors import ConfigurationError, TransactionAborted
from onceward.integrations.django.lent import lent_like
from onceward.message import Message


class Orm:
    """What is around every call of a handler."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._thread = threading.local()

    def check(self, where: str, wanted: Any, *, is_async: bool) -> None:  # noqa: ARG002 - what every provider is asked
        """Refuse `async def`: the ORM would run in another thread, and so in another transaction."""
        if is_async:
            raise ConfigurationError(
                f"{where}: an async def handler cannot have Django's ORM in its transaction: Django runs it in "
                "another thread, on another connection. Write def; it runs in a worker thread of its own"
            )

    def cause(self, error: BaseException) -> BaseException:
        """The driver's error behind one of Django's."""
        while isinstance(error, Error | TransactionAborted) and error.__cause__ is not None:
            error = error.__cause__
        return error

    @contextmanager
    def opened(self, transaction: HandlerTransaction) -> Iterator[None]:
        """The thread's connection is one on the handler's transaction."""
        outer = connections[self._using]
        lent = self._free(outer)
        with _tidied(self._thread):
            lent.lend(transaction.tx)
            connections[self._using] = lent
            try:
                yield
                lent.check()
                self._leave_for_after(transaction.messages, lent.run_on_commit)
            finally:
                connections[self._using] = outer
                lent.reclaim()
                self._thread.free.append(lent)

    def async_opened(self, transaction: HandlerTransaction) -> AbstractAsyncContextManager[Any]:
        """Refused when the handler was registered."""
        self._refuse(transaction)

    def _refuse(self, transaction: HandlerTransaction) -> NoReturn:
        raise ConfigurationError(f"{transaction.messages[0].type!r} has an async def handler; write def")

    def _free(self, outer: Any) -> Any:
        """One that no call in this thread has: handlers may be called inside of each other, by several inboxes."""
        free = self._thread.__dict__.setdefault("free", [])
        while free:
            lent = free.pop()
            if lent.settings_dict is outer.settings_dict and isinstance(lent, type(outer)):
                return lent
        return lent_like(outer)

    def _leave_for_after(self, messages: Sequence[Message], hooks: list[Any]) -> None:
        """What `on_commit` was given, after whatever `message.after_commit` was."""
        for _, call, _ in hooks:
            messages[-1].after_commit(call)
        for message in messages:
            if message.outbox is not None:
                message.outbox.calls[:] = [self._after(call) for call in message.outbox.calls]

    def _after(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def called() -> Any:
            with _tidied(self._thread):
                return call()

        return called


@contextmanager
def _tidied(thread: Any) -> Iterator[None]:
    """Django closes connections between requests, and a worker has none: what a call has opened ends with it.

    Or lives as long as CONN_MAX_AGE says. What was open before is the caller's: with `process`, a request's.
    """
    mine = thread.__dict__.setdefault("mine", [])
    for one in mine:
        _close_if_old(one)
    before = [one for one in connections.all(initialized_only=True) if one.connection is not None]
    try:
        yield
    finally:
        for one in connections.all(initialized_only=True):
            if one.connection is not None and one not in before:
                _close_if_old(one)
                if one not in mine:
                    mine.append(one)


def _close_if_old(connection: Any) -> None:
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
