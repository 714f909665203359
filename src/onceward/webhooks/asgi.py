"""Webhooks as an ASGI application: mount it in FastAPI or Starlette, or serve it alone.

Invariant: a body is counted while it comes (`runtime/asgi.py`), by itself and together with all others in hand. Storing
happens in a thread: a sender that hangs up does not interrupt a commit, and needs no second pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from onceward.runtime.asgi import Body, HungUp, Receive, Scope, Send, lifespan, path_of, respond
from onceward.webhooks.hooks import Answer, Hooks
from onceward.webhooks.request import Ambiguous, Headers, Refusal, Request, TryLater
from onceward.webhooks.wsgi import Wsgi

if TYPE_CHECKING:
    from onceward.webhooks.verifier import Event, Verifier

THREADS = 8
"""How many webhooks are stored at a time; a database takes no more from one process."""

DISCARDED_BYTES = 4 * 1024 * 1024
DISCARD_SECONDS = 1.0
"""How much of a refused body is read on: a sender that is still writing would not see the answer otherwise."""


class Webhooks:
    """The webhooks of an inbox: an ASGI application; `wsgi` is the same as a WSGI application."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self.wsgi = Wsgi(hooks)
        self._held = 0
        self._threads: ThreadPoolExecutor | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        source, read, unclear = "", _Reading(receive), False
        try:
            pairs = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
            headers = Headers(pairs)
            size = sum(len(name) + len(value) for name, value in pairs)
            verifier = self.hooks.admit(scope["method"], path_of(scope), headers, count=len(pairs), size=size)
            source = verifier.source
            body = await self._body(headers, read)
            answer = await self._take(verifier, Request(headers, body), read)
        except Refusal as refusal:
            answer, unclear = self.hooks.refused(refusal, source), isinstance(refusal, Ambiguous)
        except HungUp:
            return
        except Exception as error:  # noqa: BLE001 - a stranger's bytes must not decide what a server does about a bug
            answer = self.hooks.failed(error)
        finally:
            if not read.handed_over:
                self._held -= read.held
        if not read.body.complete and not unclear and not _waits_for_continue(scope):
            await _discard(read.body)
        await _send(send, answer, close=not read.body.complete)

    async def _body(self, headers: Headers, read: _Reading) -> bytes:
        announced = self.hooks.announced(headers)
        try:
            async with asyncio.timeout(self.hooks.limits.read.total_seconds()):
                body = await read.body.read(lambda size: self._hold(size, read))
        except TimeoutError:
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "sending the body took too long") from None
        if announced is not None and announced != read.held:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the body is not as long as was said")
        return body

    def _hold(self, size: int, read: _Reading) -> None:
        if read.held + size > self.hooks.limits.body:
            raise self.hooks.too_large()
        if self._held + size > self.hooks.limits.memory:
            raise TryLater("too many webhooks arrive at once", seconds=2)
        read.held += size
        self._held += size

    async def _take(self, verifier: Verifier, request: Request, read: _Reading) -> Answer:
        stored: Future[Answer] | None = None
        try:
            async with asyncio.timeout(self.hooks.limits.store.total_seconds()):
                event = await self._authenticated(verifier, request)
                stored = self._started(verifier, event, request, read)
                return await asyncio.shield(asyncio.wrap_future(stored))
        except TimeoutError:
            # What runs goes on, and what it commits is found by the next delivery; what only waited need not begin.
            if stored is not None:
                stored.cancel()
            raise TryLater("storing takes too long") from None

    async def _authenticated(self, verifier: Verifier, request: Request) -> Event:
        if verifier.waits:
            return await asyncio.to_thread(self.hooks.authenticate, verifier, request)
        return self.hooks.authenticate(verifier, request)

    def _started(self, verifier: Verifier, event: Event, request: Request, read: _Reading) -> Future[Answer]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="onceward-webhook")
        stored = self._threads.submit(self.hooks.store, verifier, event, request)
        read.handed_over = True
        loop = asyncio.get_running_loop()
        stored.add_done_callback(lambda _: _in_loop(loop, lambda: self._release(read.held)))
        return stored

    def close(self) -> None:
        """End the threads, after what they are storing; they start again if another webhook comes."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def _release(self, size: int) -> None:
        self._held -= size


class _Reading:
    """A request's body, and how much of the common memory it holds."""

    __slots__ = ("body", "handed_over", "held")

    def __init__(self, receive: Receive) -> None:
        self.body, self.held, self.handed_over = Body(receive), 0, False


async def _discard(body: Body) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            await body.discard(DISCARDED_BYTES)


def _waits_for_continue(scope: Scope) -> bool:
    """Whether the sender has not begun with the body, and need not."""
    return any(name == b"expect" for name, _ in scope["headers"])


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop has ended, and its count with it
        call()


async def _send(send: Send, answer: Answer, *, close: bool) -> None:
    headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    if close:  # the rest of the body is still coming, and is not read
        headers.append((b"connection", b"close"))
    await respond(send, answer.status, headers, answer.body)
