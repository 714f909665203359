"""Sessions: each has a connection of its own, and at most one recorder.

Invariant: a function of the library is a whole transaction. What a handler has recorded goes to the server with `End`
and at no other time. After an error of the connection nothing of the recorder counts any more, for what it watched
went with the connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as TookTooLong

from onceward.errors import GuardFailed, RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import Call, DryRun, Outcome, Reconnect, StoreRequest
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.recording import Recording, examined, is_infrastructure, shown
from onceward.stores.redis import library
from onceward.stores.redis.requests import Ask, End, Keep, Kept
from onceward.stores.redis.transaction import AsyncRedisTransaction, Recorded, RedisTransaction

Tx = TypeVar("Tx", bound=Recorded)
AWAY = (Disconnected, TookTooLong, BusyLoadingError, OutOfMemoryError, ReadOnlyError, OSError)
UNSEEN = "what would be stored under a key is known when the commands have run"
NAME = "the Redis store"
MISSING, EXISTS = "Function not found", "already exists"


class SessionState(Recording[Tx]):
    """What both kinds of sessions keep, and say to the server."""

    def __init__(self, recorder: Callable[[], Tx], prefix: str) -> None:
        super().__init__(recorder, NAME)
        self._prefix = prefix

    @property
    def idle(self) -> bool:
        """Whether nothing is recorded."""
        return self.tx is None

    def words(self, request: Ask) -> list[Any]:
        """The command that calls a function."""
        given, raw = dict(request.given), list(request.raw)
        if isinstance(request, End):
            tx = self.open_tx()
            commands = [write.words for write in tx.writes]
            given["commands"] = [
                {"n": len(command), "m": tx.of_message(place)} for place, command in enumerate(commands)
            ]
            raw += [word for command in commands for word in command]
        door = f"{library.name()}_read" if request.reads else library.name()
        return ["FCALL", door, 0, self._prefix, request.function, json.dumps(given), *raw]

    def local(self, request: StoreRequest) -> Any:
        """Perform what needs no answer of the server."""
        if isinstance(request, Keep):
            self.open_tx().kept = request.received
        elif isinstance(request, Kept):
            kept = self.open_tx().kept
            if kept is None:
                raise GuardFailed("the transaction that is to be finished is not there any more")
            return kept
        else:
            self.keep(request)
        return None

    @contextmanager
    def called(self, call: Call) -> Iterator[Tx]:
        """The transaction, while the handler of a message has it."""
        messages = call.message if isinstance(call.message, list) else [call.message]
        with self.lent() as tx:
            tx.began([message.seq for message in messages if hasattr(message, "seq")])
            yield tx

    def leaving(self) -> list[Ask]:
        """What is to be told to the server when the transaction is forgotten: what it has locked is free again."""
        tx, self.tx = self.tx, None
        if tx is None or tx.kept is None or not tx.kept.locks:
            return []
        locks, holder = tx.kept.locks, tx.kept.holder
        return [Ask("unlock", {"locks": list(locks), "holder": holder})]


class RedisSession(SessionState[RedisTransaction]):
    """With redis-py, whose calls wait."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        super().__init__(lambda: RedisTransaction(self._send), prefix)

    def perform(self, request: Any) -> Any:
        if isinstance(request, tuple):
            return tuple(self.perform(part) for part in request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        self.check()
        if isinstance(request, Ask):
            return self._ask(request)
        if isinstance(request, StoreRequest):
            return self.local(request)
        if isinstance(request, Call | DryRun):
            return self._call(request)
        return self.forget()

    def _call(self, request: Call | DryRun) -> Any:
        call = request if isinstance(request, Call) else request.call
        with self.called(call) as tx:
            found = told(outcome(call, tx, is_infrastructure), tx)
            return found if request is call else shown(found, tx, UNSEEN)

    def _ask(self, request: Ask) -> tuple[Any, list[bytes]]:
        words = self.words(request)
        watched = isinstance(request, End) and self.open_tx().watched
        answer = unchanged(self._if_unchanged(words)) if watched else self._send(*words)
        if isinstance(request, End):
            self.tx = None
        return json.loads(answer[0]), answer[1:]

    def _if_unchanged(self, words: Sequence[Any]) -> Any:
        self._send("MULTI")
        try:
            self._send(*words)
        except StoreError:  # the server would queue whatever comes next
            with suppress(StoreError):
                self._send("DISCARD")
            raise
        return self._send("EXEC")

    def _send(self, *words: Any) -> Any:
        try:
            try:
                return self.client.execute_command(*words)
            except ResponseError as error:
                if MISSING not in str(error):
                    raise
                load(self.client.execute_command)
                return self.client.execute_command(*words)
        except (RedisError, OSError) as error:
            raise translated(error) from error

    def forget(self) -> None:
        """Nothing is recorded any more, and what was locked is free."""
        watched = self.tx is not None and self.tx.watched
        for ask in self.leaving():
            with suppress(StoreError):  # its time will be over
                self._ask(ask)
        if watched:
            with suppress(StoreError):
                self._send("UNWATCH")

    def _reconnect(self) -> bool:
        self.forget()
        if self.is_cut:
            return False
        self.is_open = True
        try:
            self._send("PING")
        except StoreUnavailable:
            return False
        return True

    def cut(self) -> None:
        self.is_cut, self.tx = True, None
        if self.client.connection is not None:
            self.client.connection.disconnect()

    def close(self) -> None:
        if self.is_open and not self.is_cut:
            self.forget()
        self.is_open = False
        self.client.close()


class AsyncRedisSession(SessionState[AsyncRedisTransaction]):
    """With redis.asyncio, whose calls are awaited."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        super().__init__(lambda: AsyncRedisTransaction(self._send), prefix)

    async def perform(self, request: Any) -> Any:
        if isinstance(request, tuple):
            return tuple([await self.perform(part) for part in request])
        if isinstance(request, Reconnect):
            return await self._reconnect()
        self.check()
        if isinstance(request, Ask):
            return await self._ask(request)
        if isinstance(request, StoreRequest):
            return self.local(request)
        if isinstance(request, Call | DryRun):
            return await self._call(request)
        return await self.forget()

    async def _call(self, request: Call | DryRun) -> Any:
        call = request if isinstance(request, Call) else request.call
        with self.called(call) as tx:
            found = told(await awaited_outcome(call, tx, is_infrastructure), tx)
            return found if request is call else shown(found, tx, UNSEEN)

    async def _ask(self, request: Ask) -> tuple[Any, list[bytes]]:
        words = self.words(request)
        watched = isinstance(request, End) and self.open_tx().watched
        answer = unchanged(await self._if_unchanged(words)) if watched else await self._send(*words)
        if isinstance(request, End):
            self.tx = None
        return json.loads(answer[0]), answer[1:]

    async def _if_unchanged(self, words: Sequence[Any]) -> Any:
        await self._send("MULTI")
        try:
            await self._send(*words)
        except StoreError:
            with suppress(StoreError):
                await self._send("DISCARD")
            raise
        return await self._send("EXEC")

    async def _send(self, *words: Any) -> Any:
        try:
            try:
                return await self.client.execute_command(*words)
            except ResponseError as error:
                if MISSING not in str(error):
                    raise
                try:
                    await self.client.execute_command("FUNCTION", "LOAD", library.source())
                except ResponseError as other:
                    if EXISTS not in str(other):
                        raise
                return await self.client.execute_command(*words)
        except (RedisError, OSError) as error:
            raise translated(error) from error

    async def forget(self) -> None:
        """Nothing is recorded any more, and what was locked is free."""
        watched = self.tx is not None and self.tx.watched
        for ask in self.leaving():
            with suppress(StoreError):
                await self._ask(ask)
        if watched:
            with suppress(StoreError):
                await self._send("UNWATCH")

    async def _reconnect(self) -> bool:
        await self.forget()
        if self.is_cut:
            return False
        self.is_open = True
        try:
            await self._send("PING")
        except StoreUnavailable:
            return False
        return True

    def abandon(self) -> None:
        self.is_open, self.tx = False, None
        connection = self.client.connection
        if connection is not None and connection._writer is not None:  # noqa: SLF001 - nothing else drops it at once
            connection._writer.transport.abort()  # noqa: SLF001

    async def close(self) -> None:
        if self.is_open and not self.is_cut:
            await self.forget()
        self.is_open = False
        await self.client.aclose()


def told(called: Outcome, tx: Recorded) -> Outcome:
    """What a handler did; after one that watches a key its transaction ends: others must see what it wrote."""
    called.leaves = tx.watched
    return examined(called, tx)


def load(execute: Callable[..., Any]) -> None:
    """Give the server our library; fine where another has done so meanwhile."""
    try:
        execute("FUNCTION", "LOAD", library.source())
    except ResponseError as error:
        if EXISTS not in str(error):
            raise


def unchanged(answers: Any) -> Any:
    """The answer of the one command between MULTI and EXEC."""
    if answers is None:
        raise StoreConflict("a key that the handler watched has changed since; nothing was applied")
    (answer,) = answers
    if isinstance(answer, RedisError) and MISSING in str(answer):
        raise StoreConflict("the server has lost the functions of this inbox, which the next call loads again")
    if isinstance(answer, RedisError):
        raise translated(answer)
    return answer


@contextmanager
def translating() -> Iterator[None]:
    """Errors of the client or the server are ours."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise translated(error) from error


def translated(error: Exception) -> StoreError:
    """An error of the client or the server as one of ours."""
    text = str(error)
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return RightsMissing(f"Redis does not allow it: {text}")
    if isinstance(error, AWAY) or text.startswith(("OOM", "MISCONF", "READONLY", "MASTERDOWN", "BUSY", "LOADING")):
        return StoreUnavailable(f"Redis is away or cannot write: {text}")
    for mark, kind in (("ONCEWARD GUARD ", GuardFailed), ("ONCEWARD CONFLICT ", StoreConflict)):
        if mark in text:
            return kind(_told(text, mark))
    if "ONCEWARD EFFECT " in text:
        return StoreError(f"nothing of the transaction was applied: {_told(text, 'ONCEWARD EFFECT ')}")
    return StoreError(text)


def _told(text: str, mark: str) -> str:
    """What our library has said, without the place in it."""
    return text.partition(mark)[2].partition(" script: ")[0]
